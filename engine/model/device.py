"""Where a worker computes, in what, by whom, and how many blocks its pool has: what the settings say, checked."""

import torch

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.model.folder import ModelFolder
from engine.model.model import Model
from engine.step import CacheShape
from kernels.errors import BackendUnavailable
from kernels.ops import Ops, select_backend
from kernels.pages import Pages


def choose_device(config: EngineConfig) -> torch.device:
    """Return the device that the settings name.

    Raises:
        ConfigError: it is not there.
    """
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("ENGINE_DEVICE=cuda: torch sees no CUDA device; use ENGINE_DEVICE=cpu")
    if config.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(config.device)


def choose_dtype(config: EngineConfig) -> torch.dtype:
    """Return the dtype that the settings name, or the fast one."""
    if config.dtype != "auto":
        return torch.float32 if config.dtype == "float32" else torch.bfloat16
    on_gpu = choose_device(config).type != "cpu"
    fast = on_gpu or torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.bfloat16 if fast else torch.float32


def choose_backend(config: EngineConfig) -> Ops:
    """Return the kernels that the settings name.

    Raises:
        ConfigError: they cannot run there.
    """
    name, weights = config.backend, config.weight_dtype
    device, dtype = choose_device(config), choose_dtype(config)
    try:
        return select_backend(name, device=device, dtype=dtype, weights=weights)  # type: ignore[arg-type]  # checked by the config
    except BackendUnavailable as error:
        setting = (
            f"ENGINE_BACKEND={name}" if weights == "auto" else f"ENGINE_BACKEND={name}, ENGINE_WEIGHT_DTYPE={weights}"
        )
        raise ConfigError(f"{setting}: {error}") from error


def cache_shape(config: EngineConfig, folder: ModelFolder, model: Model, ops: Ops, *, shared: bool) -> CacheShape:
    """Divide the pool's bytes, and those of host memory, into blocks.

    `shared`: both are one memory, which nothing is brought from or to.

    Raises:
        ConfigError: not one fits.
    """
    block_bytes = model.page_shape(num_blocks=0, block_size=config.block_size).block_bytes(ops.dtype)
    num_blocks = config.kv_bytes // block_bytes
    if num_blocks < 1:
        raise ConfigError(f"ENGINE_KV_BYTES={config.kv_bytes}: one block of this model takes {block_bytes} bytes")
    num_slabs = config.host_bytes // block_bytes
    return CacheShape(
        num_blocks=num_blocks,
        block_size=config.block_size,
        block_bytes=block_bytes,
        max_rows=config.max_running,
        max_columns=-(-folder.max_context_tokens // config.block_size),
        num_slabs=num_slabs,
        streams=num_slabs > 0 and (ops.reads_slabs or not shared),
    )


def empty_pages(config: EngineConfig, ops: Ops, model: Model, shape: CacheShape) -> Pages:
    """Allocate the pool and one block more, of zeros, the last: padding reads it, and no sequence has it.

    Raises:
        ConfigError: there is no room; the allocators of torch say so with a RuntimeError.
    """
    try:
        pages = ops.empty_pages(model.page_shape(num_blocks=shape.num_blocks + 1, block_size=shape.block_size))
    except RuntimeError as error:
        raise ConfigError(
            f"ENGINE_KV_BYTES={config.kv_bytes}: the device has no room for so much; choose less"
        ) from error
    pages.data[:, -1].zero_()
    return pages


class PeakMemory:
    """Measures how much more of a GPU's memory tensors hold at once while it is entered; nothing on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._before = 0
        self.num_bytes = 0

    def __enter__(self) -> "PeakMemory":
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
            self._before = torch.cuda.memory_allocated(self._device)
        return self

    def __exit__(self, *_: object) -> None:
        if self._device.type == "cuda":
            self.num_bytes = torch.cuda.max_memory_allocated(self._device) - self._before
