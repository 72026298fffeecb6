"""The runner: owns every tensor, runs one forward a step over the paged cache. START HERE: `launch`."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from engine.config import EngineConfig
from engine.errors import ConfigError, CoreError
from engine.model.folder import ModelFolder
from engine.model.logprobs import Asking, asking, read, with_logprobs
from engine.model.model import Model, load_model
from engine.model.sampler import sample
from engine.step import BlockCopy, CacheShape, SequenceStep, StepHandle, StepPlan, StepResult
from kernels.batch import AttentionBatch
from kernels.errors import BackendUnavailable
from kernels.ops import Ops, select_backend
from kernels.pages import Pages, PageShape
from kernels.threads import usable_cores


@dataclass(frozen=True, slots=True)
class Launched:
    """A step whose tokens may still be on their way from the device."""

    values: torch.Tensor  # the tokens; where `asking` names rows, with their log-probabilities
    asking: tuple[Asking, ...]
    num_tokens: int
    elapsed: Callable[[], float]

    def wait(self) -> StepResult:
        """Block until the tokens are here."""
        values = self.values.tolist()  # the step's one transfer from the device
        if not self.asking:
            return StepResult(token_ids=tuple(values), seconds=self.elapsed())
        token_ids, logprobs = read(values, self.asking, self.num_tokens)
        return StepResult(token_ids=token_ids, seconds=self.elapsed(), logprobs=logprobs)


class ModelRunner:
    """Executes steps. Not thread-safe: one thread constructs it and launches all steps."""

    def __init__(self, config: EngineConfig, folder: ModelFolder) -> None:
        torch.set_num_threads(config.threads or usable_cores())
        device, dtype = _device(config), _dtype(config)
        self._ops = _backend(config, device, dtype)
        self._poison = config.poison
        with torch.inference_mode():
            self._model = load_model(folder, self._ops, dummy=config.load_format == "dummy")
            self._shape, page_shape = _cache_shape(config, folder, self._model, dtype)
            self._pages = _empty_pages(self._ops, page_shape, config.kv_bytes)
            self._table = torch.zeros((self._shape.max_rows, self._shape.max_columns), dtype=torch.int32, device=device)
            self._host_table = self._table.numpy() if device.type == "cpu" else self._table.cpu().numpy()

    @property
    def shape(self) -> CacheShape:
        """The pool's geometry."""
        return self._shape

    @property
    def runs_ahead(self) -> bool:
        """See `Runner.runs_ahead`: a launch on the CPU returns when its step has been computed."""
        return self._ops.device.type != "cpu"

    @property
    def dtype(self) -> str:
        """`float32` or `bfloat16`."""
        return str(self._ops.dtype).removeprefix("torch.")

    @property
    def device(self) -> str:
        """`cpu` or `cuda`."""
        return self._ops.device.type

    @property
    def kernel_backend(self) -> str:
        """The kernels in use."""
        return self._ops.name

    def launch(self, plan: StepPlan) -> StepHandle:
        """Apply the plan's poison, table writes and copies, run the model, sample. Steps run in order."""
        started = time.perf_counter()
        with torch.inference_mode():
            if self._poison and plan.poison:
                self._pages.fill(self._to_device(np.array(plan.poison, dtype=np.int64)), float("nan"))
            self._write_table(plan)
            self._copy(plan.copies)
            token_ids, batch = self._batch(plan.sequences)
            sampled = [index for index, part in enumerate(plan.sequences) if part.sampling is not None]
            last = self._to_device(_last_tokens(plan.sequences, sampled))
            logits = self._model.forward(token_ids, batch, self._pages, last)
            if self._poison and bool(logits.isnan().any()):
                raise CoreError(f"step {plan.number} read a stale or foreign KV slot: its logits are NaN")
            return self._choose(logits.float(), [plan.sequences[index] for index in sampled], started)

    def _choose(self, logits: torch.Tensor, parts: list[SequenceStep], started: float) -> Launched:
        """Sample a token of each row, and take down the log-probabilities that are asked for."""
        tokens, rows = sample(logits, parts), asking(parts)
        values = with_logprobs(tokens, logits, rows) if rows else tokens
        return Launched(values, rows, len(parts), self._clock(started))

    def _clock(self, started: float) -> Callable[[], float]:
        """Return what tells the step's seconds: on the CPU it has ended by now, elsewhere it ends with the wait."""
        if self._ops.device.type == "cpu":
            seconds = time.perf_counter() - started
            return lambda: seconds
        return lambda: time.perf_counter() - started

    def _write_table(self, plan: StepPlan) -> None:
        for write in plan.table_writes:
            self._host_table[write.row, write.column : write.column + len(write.blocks)] = write.blocks
        if self._ops.device.type != "cpu":  # there, both are one memory
            for row in sorted({write.row for write in plan.table_writes}):
                self._table[row] = self._to_device(self._host_table[row])

    def _copy(self, copies: Sequence[BlockCopy]) -> None:
        """Copy blocks one after the other: many in one call, as long as none of them touches another's target."""
        for run in independent(copies):
            sources, targets = np.array(run, dtype=np.int64).T
            self._ops.copy_blocks(
                self._pages,
                self._to_device(np.ascontiguousarray(sources)),
                self._to_device(np.ascontiguousarray(targets)),
            )

    def _batch(self, parts: Sequence[SequenceStep]) -> tuple[torch.Tensor, AttentionBatch]:
        """Lay the sequences end to end."""
        lengths = np.array([len(part.token_ids) for part in parts], dtype=np.int32)
        starts = np.array([part.start for part in parts], dtype=np.int32)
        rows = np.array([part.row for part in parts], dtype=np.int32)
        query_starts = np.zeros(len(parts) + 1, dtype=np.int32)
        np.cumsum(lengths, out=query_starts[1:])
        token_ids = np.fromiter((token for part in parts for token in part.token_ids), np.int64, query_starts[-1])
        within = np.arange(query_starts[-1], dtype=np.int32) - np.repeat(query_starts[:-1], lengths)
        positions = within + np.repeat(starts, lengths)
        size = self._shape.block_size
        blocks = self._host_table[np.repeat(rows, lengths), positions // size].astype(np.int64)
        contexts = starts + lengths
        batch = AttentionBatch(
            positions=self._to_device(positions),
            slots=self._to_device(blocks * size + positions % size),
            query_starts=self._to_device(query_starts),
            contexts=self._to_device(contexts),
            rows=self._to_device(rows),
            block_table=self._table,
            max_query=int(lengths.max()),
            max_context=int(contexts.max()),
            num_decodes=_leading_decodes(lengths),
        )
        return self._to_device(token_ids), batch

    def _to_device(self, array: "np.ndarray[Any, Any]") -> torch.Tensor:
        return torch.from_numpy(array).to(self._ops.device)


def independent(copies: Iterable[BlockCopy]) -> Iterator[list[BlockCopy]]:
    """Cut copies into runs, of which each means the same in any order: no target is read or written by another copy."""
    run: list[BlockCopy] = []
    sources: set[int] = set()
    targets: set[int] = set()
    for copy in copies:
        if copy.source in targets or copy.target in targets or copy.target in sources:
            yield run
            run, sources, targets = [], set(), set()
        run.append(copy)
        sources.add(copy.source)
        targets.add(copy.target)
    if run:
        yield run


def _leading_decodes(lengths: "np.ndarray[Any, Any]") -> int:
    """Return how many sequences of one token come before the first longer one."""
    longer = np.flatnonzero(lengths != 1)
    return int(longer[0]) if longer.size else len(lengths)


def _last_tokens(parts: Sequence[SequenceStep], sampled: list[int]) -> "np.ndarray[Any, Any]":
    ends = np.cumsum([len(part.token_ids) for part in parts], dtype=np.int64)
    return ends[sampled] - 1 if sampled else ends[:0]


def _device(config: EngineConfig) -> torch.device:
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("ENGINE_DEVICE=cuda: torch sees no CUDA device; use ENGINE_DEVICE=cpu")
    if config.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(config.device)


def _dtype(config: EngineConfig) -> torch.dtype:
    if config.dtype != "auto":
        return torch.float32 if config.dtype == "float32" else torch.bfloat16
    fast = _device(config).type != "cpu" or torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.bfloat16 if fast else torch.float32


def _backend(config: EngineConfig, device: torch.device, dtype: torch.dtype) -> Ops:
    name, weights = config.backend, config.weight_dtype
    try:
        return select_backend(name, device=device, dtype=dtype, weights=weights)  # type: ignore[arg-type]  # checked by the config
    except BackendUnavailable as error:
        setting = (
            f"ENGINE_BACKEND={name}" if weights == "auto" else f"ENGINE_BACKEND={name}, ENGINE_WEIGHT_DTYPE={weights}"
        )
        raise ConfigError(f"{setting}: {error}") from error


def _empty_pages(ops: Ops, shape: PageShape, kv_bytes: int) -> Pages:
    """Allocate the pool; the allocators of torch say with a RuntimeError that there is no room."""
    try:
        return ops.empty_pages(shape)
    except RuntimeError as error:
        raise ConfigError(f"ENGINE_KV_BYTES={kv_bytes}: the device has no room for so much; choose less") from error


def _cache_shape(
    config: EngineConfig, folder: ModelFolder, model: Model, dtype: torch.dtype
) -> tuple[CacheShape, PageShape]:
    """Divide the pool's bytes into blocks."""
    block_bytes = model.page_shape(num_blocks=0, block_size=config.block_size).block_bytes(dtype)
    num_blocks = config.kv_bytes // block_bytes
    if num_blocks < 1:
        raise ConfigError(f"ENGINE_KV_BYTES={config.kv_bytes}: one block of this model takes {block_bytes} bytes")
    shape = CacheShape(
        num_blocks=num_blocks,
        block_size=config.block_size,
        block_bytes=block_bytes,
        max_rows=config.max_running,
        max_columns=-(-folder.max_context_tokens // config.block_size),
    )
    return shape, model.page_shape(num_blocks=num_blocks, block_size=config.block_size)
