"""Where weights come from: the safetensors files of a folder, or a random generator for benchmarks without weights."""

from contextlib import ExitStack
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open

from engine.errors import ModelError
from engine.model.folder import ModelFolder
from kernels.ops import Ops

_TILE = 1_000_003  # numbers drawn; a prime, so that their repetition lines up with no row


class Source(Protocol):
    """Tensors by name."""

    def has(self, name: str) -> bool:
        """Whether there is such a tensor."""
        ...

    def take(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """Return a tensor in the ops' dtype on the ops' device."""
        ...


class FileSource:
    """Open weight files; remembers what has been taken."""

    def __init__(self, folder: ModelFolder, stack: ExitStack, ops: Ops) -> None:
        self._ops = ops
        self._path = folder.path
        self._files: dict[str, Any] = {}
        for path in folder.weight_files:
            try:
                file = stack.enter_context(safe_open(path, framework="pt"))
            except SafetensorError as error:
                raise ModelError(f"{path}: not a whole safetensors file: {error}") from error
            self._files.update(dict.fromkeys(file.keys(), file))
        self._unused = set(self._files)

    def has(self, name: str) -> bool:
        """See `Source.has`."""
        return name in self._files

    def take(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """See `Source.take`.

        Raises:
            ModelError: there is no such tensor, or it has another shape.
        """
        if name not in self._files:
            raise ModelError(f"{self._path}: the weights have no {name}")
        tensor: torch.Tensor = self._files[name].get_tensor(name)
        if tuple(tensor.shape) != shape:
            raise ModelError(f"{self._path}: {name} has shape {tuple(tensor.shape)}; config.json says {shape}")
        self._unused.discard(name)
        return tensor.to(self._ops.device, self._ops.dtype)

    def refuse_unused(self, ignored: tuple[str, ...]) -> None:
        """Raise when a tensor of the file has no place in the decoder: the output would be wrong without a word."""
        left = sorted(name for name in self._unused - set(ignored) if not name.endswith("rotary_emb.inv_freq"))
        if left:
            raise ModelError(f"{self._path}: {len(left)} weights have no place in this decoder, such as {left[0]}")


class DummySource:
    """Random weights of any shape, the same in each process; there are no biases. Drawn on the device."""

    def __init__(self, ops: Ops) -> None:
        random = torch.Generator(ops.device).manual_seed(0)
        self._tile = torch.randn(_TILE, generator=random, device=ops.device, dtype=torch.float32).to(ops.dtype)
        self._ops = ops

    def has(self, name: str) -> bool:
        """Whether it is a weight."""
        return name.endswith(".weight")

    def take(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """Return a norm of ones, or a matrix whose product keeps the size of its input."""
        if len(shape) == 1:
            return torch.ones(shape, dtype=self._ops.dtype, device=self._ops.device)
        out = torch.empty(shape, dtype=self._ops.dtype, device=self._ops.device)
        flat, scaled = out.view(-1), self._tile * shape[-1] ** -0.5
        for start in range(0, flat.shape[0], _TILE):
            part = flat[start : start + _TILE]
            part.copy_(scaled[: part.shape[0]])
        return out
