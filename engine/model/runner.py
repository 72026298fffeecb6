"""The runner: owns every tensor, runs one forward a step over the paged cache. START HERE: `launch`.

    plan -> edits of pages and table -> layout -> a graph, or the model kernel by kernel -> sampling -> the way back

On a GPU nothing in `launch` waits for the device, so that steps may be launched ahead; `Launched.wait` waits once.
"""

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch

from engine.config import EngineConfig
from engine.errors import ConfigError, CoreError
from engine.model import arrivals
from engine.model.arrivals import StreamArrivals, ThreadArrivals
from engine.model.copier import Copier, ThreadCopier
from engine.model.device import PeakMemory, cache_shape, choose_backend, empty_pages
from engine.model.folder import ModelFolder
from engine.model.graphs import DecodeGraphs
from engine.model.lanes import LOADS, STORES, WAITS, Lane
from engine.model.layout import Layout, lay_out
from engine.model.link import Link, link_to
from engine.model.logprobs import Asking, asking, read, with_logprobs
from engine.model.model import load_model
from engine.model.placeholders import LastTokens
from engine.model.sampler import sample
from engine.model.slabs import Slabs
from engine.model.stream_copier import StreamCopier
from engine.model.streaming import Streaming, check_hosted, in_place
from engine.model.table import BlockTable
from engine.model.warm import warm_up_plans
from engine.request import BlockId, SlabId
from engine.step import (
    BlockCopy,
    CacheShape,
    StepHandle,
    StepPlan,
    StepResult,
    TableWrite,
    TokenLogprobs,
    Transfer,
    TransferDone,
)
from kernels.batch import AttentionBatch
from kernels.threads import usable_cores

_log = logging.getLogger("tollgate.model")


class Launched:
    """A step whose tokens may still be on their way from the device."""

    def __init__(
        self, lane: Lane, asking: tuple[Asking, ...], num_tokens: int, *, number: int, checked: bool, beside: bool
    ) -> None:
        self._lane, self._asking, self._num_tokens = lane, asking, num_tokens
        self._number, self._checked = number, checked
        self._beside = beside  # loads went on while it computed
        self._result: StepResult | None = None

    def wait(self) -> StepResult:
        """Block until the tokens are here.

        Raises:
            CoreError: the step read a slot that was poisoned.
        """
        if self._result is None:
            self._result = self._read()
        return self._result

    def _read(self) -> StepResult:
        values, seconds = self._lane.wait()
        if self._checked and values.pop():
            raise CoreError(f"step {self._number} read a stale or foreign KV slot: its logits are NaN")
        token_ids: tuple[int, ...]
        logprobs: tuple[TokenLogprobs | None, ...] = ()
        if self._asking:
            token_ids, logprobs = read(values, self._asking, self._num_tokens)
        else:
            token_ids = tuple(map(int, values))
        loads = self._lane.seconds_of(LOADS)
        hidden = loads - self._lane.seconds_of(WAITS) if self._beside else 0.0  # that the step computed meanwhile
        return StepResult(
            token_ids=token_ids,
            seconds=seconds + max(0.0, hidden),
            logprobs=logprobs,
            store_seconds=self._lane.seconds_of(STORES),
            load_seconds=loads,
        )


class ModelRunner:
    """Executes steps. Not thread-safe: one thread constructs it and launches all steps."""

    def __init__(self, config: EngineConfig, folder: ModelFolder, link: Link | None = None) -> None:
        """Load the model, reserve its pool and, on a GPU, warm up and record graphs.

        Args:
            config: the settings.
            folder: the model on disk.
            link: how the device is reached; None: as its kind needs it.
        """
        torch.set_num_threads(config.threads or usable_cores())
        self._ops = choose_backend(config)
        self._poison = config.poison
        device = self._ops.device
        self._link = link or link_to(device)
        with torch.inference_mode():
            self._model = load_model(folder, self._ops, dummy=config.load_format == "dummy")
            self._shape = shape = cache_shape(config, folder, self._model, self._ops, shared=self._link.shared)
            self._pages = empty_pages(config, self._ops, self._model, shape)
            self._slabs = Slabs(self._ops, self._pages, shape.num_slabs)
            self._copier, self._arrivals = self._beside()
            self._streaming = self._staging()
            self._table = BlockTable(shape.max_rows + 1, shape.max_columns, device, shared=self._link.shared)
            self._pad()
            self._last = LastTokens(shape.max_rows, device)
        max_context = min(folder.max_context_tokens, shape.num_blocks * shape.block_size)
        self._graphs: DecodeGraphs | None = None
        if not self._link.shared:
            spared_bytes = self._warm_up(config, max_context)
            self._graphs = self._record(config, max_context, spared_bytes)

    @property
    def shape(self) -> CacheShape:
        """The pool's geometry."""
        return self._shape

    @property
    def runs_ahead(self) -> bool:
        """See `Runner.runs_ahead`: a launch on the CPU returns when its step has been computed."""
        return not self._link.shared

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

    @property
    def num_graphs(self) -> int:
        """How many buckets of decodes have a graph."""
        return len(self._graphs.buckets) if self._graphs is not None else 0

    def launch(self, plan: StepPlan) -> StepHandle:
        """Apply the plan's edits, run the model, sample. Steps run in order.

        Raises:
            CoreError: a placeholder stands for no token, or too many steps have not been waited for.
        """
        lane = self._link.lanes.take()
        with torch.inference_mode():
            lane.begin()
            loading = self._edit(plan, lane)
            layout = lay_out(plan.sequences, self._table.host, self._shape.block_size)
            refers = self._last.asked_for(layout.token_ids, plan.number)
            hosted = check_hosted(plan.sequences, self._shape.block_size, plan.number)
            recorded = self._graphs if loading is None and not hosted else None
            logits = None if recorded is None else recorded.run(layout, lane)
            if logits is None:
                batch, token_ids, sampled = self._batch(layout, lane, loading)
                if hosted:
                    batch = self._host(batch, plan, layout, lane)
                if refers:
                    token_ids = self._last.put_in(token_ids)
                logits = self._model.forward(token_ids, batch, self._pages, sampled)
            if loading is not None:
                loading.end(lane)
            return self._choose(plan, logits, lane, beside=loading is not None)

    def copy(self, transfer: Transfer) -> None:
        """See `Runner.copy`."""
        with torch.inference_mode():
            self._copier.copy(transfer)

    def copied(self) -> list[TransferDone]:
        """See `Runner.copied`.

        Raises:
            CoreError: a copy failed.
        """
        return self._copier.copied()

    def slab_memory(self, slab: SlabId) -> memoryview:
        """See `Runner.slab_memory`."""
        return self._slabs.memory(slab)

    def wipe(self, slabs: Sequence[SlabId]) -> None:
        """See `Runner.wipe`: the host writes, so that who gets a slab next may do so too."""
        self._copier.settle(slabs=slabs)
        self._link.finish()
        self._slabs.wipe(slabs)

    def wipe_blocks(self, blocks: Sequence[BlockId]) -> None:
        """See `Runner.wipe_blocks`. Under poison they are filled with NaN, as what nobody has."""
        self._copier.settle(blocks=blocks)
        with torch.inference_mode():
            there = torch.tensor(blocks, dtype=torch.int64, device=self._ops.device)
            self._pages.fill(there, float("nan") if self._poison else 0.0)

    def close(self) -> None:
        """Let copies beside the steps end; those that have not begun are dropped. Nothing may be launched after it."""
        self._copier.close()

    def _beside(self) -> tuple[Copier, StreamArrivals | None]:
        """Return who copies beside the steps, and on a GPU who loads layer by layer."""
        if self._link.side is None:
            return ThreadCopier(self._slabs.beside()), None
        return StreamCopier(self._slabs, self._link.side), StreamArrivals(self._slabs, self._link.side)

    def _staging(self) -> Streaming | None:
        """Return what brings blocks for a step's attention to the device; None: kernels read them in place."""
        if self._link.side is None or not self._shape.streams:
            return None
        return Streaming(self._ops, self._slabs, self._pages.shape, self._link.side)

    def _edit(self, plan: StepPlan, lane: Lane) -> StreamArrivals | ThreadArrivals | None:
        """Change pages and table as the plan says; what the device must be told goes there in one copy.

        Returns:
            The loads that go on while the step computes; None: all has been loaded, or is in the order of launches.
        """
        if plan.stores:
            with lane.timed(STORES):
                self._slabs.store(plan.stores, lane.send_one)
        poison = np.array(plan.poison if self._poison else (), dtype=np.int64)
        cells = self._table.write(plan.table_writes)
        copies = [np.ascontiguousarray(np.array(run, dtype=np.int64).T) for run in independent(plan.copies)]
        arrays = [*([poison] if poison.size else ()), *(cells or ()), *(one for pair in copies for one in pair)]
        there = iter(lane.send(*arrays) if arrays else ())
        if poison.size:
            self._pages.fill(next(there), float("nan"))
        if cells is not None:
            self._table.update(next(there), next(there))
        loading = self._load(plan, lane)
        for _ in copies:
            self._ops.copy_blocks(self._pages, next(there), next(there))
        return loading

    def _load(self, plan: StepPlan, lane: Lane) -> StreamArrivals | ThreadArrivals | None:
        """Start a plan's loads, beside the step where nothing but its layers needs them and it is worth it."""
        if not plan.loads:
            return None
        if not plan.copies:  # which may read what is loaded
            if self._arrivals is not None:
                return self._arrivals.start(plan.loads, lane)
            worth = self._link.spare and len(plan.loads) * self._shape.block_bytes >= arrivals.WORTH_BYTES
            if worth and isinstance(self._copier, ThreadCopier):
                return ThreadArrivals(self._slabs.beside(), plan.loads, self._copier)
        with lane.timed(LOADS):
            self._slabs.load(plan.loads, lane.send_one)
        return None

    def _batch(
        self, layout: Layout, lane: Lane, loading: StreamArrivals | ThreadArrivals | None
    ) -> tuple[AttentionBatch, torch.Tensor, torch.Tensor]:
        """Return a step that is computed kernel by kernel: its batch, its token ids, and which tokens are sampled."""
        token_ids, slots, positions, starts, contexts, rows, sampled = lane.send(*layout[:7])
        batch = AttentionBatch(
            positions=positions,
            slots=slots,
            query_starts=starts,
            contexts=contexts,
            rows=rows,
            block_table=self._table.tensor,
            max_query=layout.max_query,
            max_context=layout.max_context,
            num_decodes=layout.num_decodes,
            arrivals=loading,
        )
        return batch, token_ids, sampled

    def _host(self, batch: AttentionBatch, plan: StepPlan, layout: Layout, lane: Lane) -> AttentionBatch:
        """Return the batch with the blocks that are in host memory alone."""
        if self._streaming is not None:
            return replace(batch, stream=self._streaming.start(plan.sequences, layout, batch, lane))
        if not self._shape.streams:
            raise CoreError(f"step {plan.number} has blocks in host memory, which this runner's attention cannot read")
        return replace(batch, hosted=in_place(plan.sequences, self._slabs, self._shape.block_size, lane))

    def _choose(self, plan: StepPlan, logits: torch.Tensor, lane: Lane, *, beside: bool) -> Launched:
        """Sample a token of each row, take down the log-probabilities that are asked for, and start the way back."""
        parts = [part for part in plan.sequences if part.sampling is not None]
        rows = asking(parts)
        stale = logits.isnan().any() if self._poison else None
        if stale is not None:
            logits = logits.nan_to_num(0.0)  # the step is an error; until it is waited for, samplers need numbers

        tokens = sample(logits, parts, self._ops, lane.send_one)
        self._last.keep(tokens)
        values = with_logprobs(tokens, logits, rows, self._ops, lane.send_one) if rows else tokens
        if stale is not None:
            values = torch.cat((values, stale.to(values.dtype)[None]))
        lane.fetch(values)
        lane.end()
        return Launched(lane, rows, len(parts), number=plan.number, checked=stale is not None, beside=beside)

    def _pad(self) -> None:
        """Give the table's last row, the padding's, the pool's last block, of zeros."""
        shape = self._shape
        self._pages.data[:, -1].zero_()
        last = TableWrite(row=shape.max_rows, column=0, blocks=(BlockId(shape.num_blocks),) * shape.max_columns)
        cells = self._table.write((last,))
        if cells is not None:
            self._table.update(*(torch.from_numpy(one).to(self._ops.device) for one in cells))

    def _warm_up(self, config: EngineConfig, max_context: int) -> int:
        """Run every kind of step once; return the device memory that the largest needs beside weights and pool.

        Raises:
            ConfigError: it is not there.
        """
        began = time.perf_counter()
        try:
            with PeakMemory(self._ops.device) as peak:
                for plan in warm_up_plans(self._shape, max_context, config.max_batched_tokens):
                    self.launch(plan).wait()
        except torch.OutOfMemoryError as error:
            raise ConfigError(
                f"ENGINE_KV_BYTES={config.kv_bytes}: the device has no room left for a step of "
                f"ENGINE_MAX_BATCHED_TOKENS={config.max_batched_tokens}; choose less of either"
            ) from error
        with torch.inference_mode():
            self._pad()
        _log.info("warm-up: %.1f s; a step takes up to %d MiB", time.perf_counter() - began, peak.num_bytes >> 20)
        return peak.num_bytes

    def _record(self, config: EngineConfig, max_context: int, spared_bytes: int) -> DecodeGraphs | None:
        """Record graphs of decodes where there are any to be had."""
        if config.graphs == "off" or self._link.capture is None:
            return None
        if reason := self._unrecordable():
            _log.warning("graphs: none, since %s; decodes are launched kernel by kernel, which is slower", reason)
            return None
        with torch.inference_mode():
            graphs = DecodeGraphs(self._forward, self._table.tensor, max_context)
            graphs.record(self._link.capture(spared_bytes))
        return graphs

    def _unrecordable(self) -> str:
        """Return why a graph of this model would fail, or be wrong; empty: it would not."""
        if self._ops.device.type == "cuda" and self._ops.name != "triton":
            return f"the {self._ops.name} kernels wait for the device"
        return "" if self._model.recordable else "what the class of transformers launches may depend on values"

    def _forward(self, token_ids: torch.Tensor, batch: AttentionBatch, sampled: torch.Tensor) -> torch.Tensor:
        """Compute decodes as a graph does, whatever their tokens stand for."""
        return self._model.forward(self._last.put_in(token_ids), batch, self._pages, sampled)


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
