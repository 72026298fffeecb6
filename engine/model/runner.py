"""The runner: owns every tensor, runs one forward a step over the paged cache. START HERE: `launch`.

    plan -> edits of pages and table -> layout -> a graph, or the model kernel by kernel -> sampling -> the way back

On a GPU nothing in `launch` waits for the device, so that steps may be launched ahead; `Launched.wait` waits once.
"""

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.model.arrivals import StreamArrivals, ThreadArrivals
from engine.model.asked import Asked, Values, asked_of
from engine.model.device import PeakMemory, cache_shape, choose_backend, empty_pages
from engine.model.folder import ModelFolder
from engine.model.graphs import DecodeGraphs
from engine.model.host_memory import HostMemory
from engine.model.lanes import Lane
from engine.model.launched import Launched
from engine.model.layout import Layout, lay_out
from engine.model.link import Link, link_to
from engine.model.logprobs import prompt_scores, rows_at_once, sampled_scores
from engine.model.model import load_model
from engine.model.placeholders import LastTokens
from engine.model.pooling import Pool
from engine.model.sampler import sample
from engine.model.table import BlockTable
from engine.model.warm import warm_up_plans
from engine.request import BlockId, SlabId
from engine.step import (
    BlockCopy,
    CacheShape,
    SequenceStep,
    StepHandle,
    StepPlan,
    TableWrite,
    Transfer,
    TransferDone,
)
from kernels.batch import AttentionBatch
from kernels.threads import usable_cores

_log = logging.getLogger("tollgate.model")


class Made(NamedTuple):
    """What the model has made of a step."""

    logits: torch.Tensor  # `[N, vocab]`
    hidden: torch.Tensor | None = None  # `[T, H]`, where somebody asks for it


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
        self._blank = float("nan") if config.poison else 0.0  # what pages are overwritten with
        device = self._ops.device
        self._link = link or link_to(device)
        with torch.inference_mode():
            self._model = load_model(folder, self._ops, dummy=config.load_format == "dummy")
            self._shape = shape = cache_shape(config, folder, self._model, self._ops, shared=self._link.shared)
            self._pages = empty_pages(config, self._ops, self._model, shape)
            self._host = HostMemory(self._ops, self._pages, shape, self._link)
            self._table = BlockTable(shape.max_rows + 1, shape.max_columns, device, shared=self._link.shared)
            self._pad()
            self._last = LastTokens(shape.max_rows, device)
            self._pool = Pool(shape.max_rows + 1, self._model.embedding_size, device)
        self._rows_at_once = rows_at_once(folder.vocab_size)
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
    def embedding_size(self) -> int:
        """Numbers of an embedding; 0: the model tells neither hidden states nor the log-probabilities of a prompt."""
        return self._model.embedding_size

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
            hosted = self._host.needed(plan)
            sampled = [part for part in plan.sequences if part.sampling is not None]
            asked = asked_of(plan.sequences, sampled, layout.query_starts)
            recorded = self._graphs if loading is None and not hosted and not asked.needs_hidden else None
            logits = None if recorded is None else recorded.run(layout, lane)
            if logits is not None:
                made = Made(logits)
            else:
                keeps = asked.needs_hidden
                made = self._run(plan, layout, lane, loading=loading, hosted=hosted, refers=refers, keeps=keeps)
            if loading is not None:
                loading.end(lane)
            values = self._choose(sampled, made, lane, asked)
            checked = self._fetch(values, made, lane)
            lane.end()
            beside = loading is not None
            return Launched(lane, asked, values.sizes, number=plan.number, checked=checked, beside=beside)

    def copy(self, transfer: Transfer) -> None:
        """See `Runner.copy`."""
        with torch.inference_mode():
            self._host.copy(transfer)

    def copied(self) -> list[TransferDone]:
        """See `Runner.copied`.

        Raises:
            CoreError: a copy failed.
        """
        return self._host.copied()

    def slab_memory(self, slab: SlabId) -> memoryview:
        """See `Runner.slab_memory`."""
        return self._host.memory(slab)

    def wipe(self, slabs: Sequence[SlabId]) -> None:
        """See `Runner.wipe`."""
        self._host.wipe(slabs)

    def wipe_blocks(self, blocks: Sequence[BlockId]) -> None:
        """See `Runner.wipe_blocks`. Under poison they are filled with NaN, as what nobody has."""
        self._host.settle(blocks)
        with torch.inference_mode():
            there = torch.tensor(blocks, dtype=torch.int64, device=self._ops.device)
            self._pages.fill(there, self._blank)

    def close(self) -> None:
        """Let copies beside the steps end; those that have not begun are dropped. Nothing may be launched after it."""
        self._host.close()

    def _edit(self, plan: StepPlan, lane: Lane) -> StreamArrivals | ThreadArrivals | None:
        """Change pages and table as the plan says; what the device must be told goes there in one copy.

        Returns:
            The loads that go on while the step computes; None: all has been loaded, or is in the order of launches.
        """
        self._host.store(plan, lane)
        stale = np.array(plan.poison if self._poison else plan.unfilled, dtype=np.int64)
        cells = self._table.write(plan.table_writes)
        copies = [np.ascontiguousarray(np.array(run, dtype=np.int64).T) for run in independent(plan.copies)]
        arrays = [*([stale] if stale.size else ()), *(cells or ()), *(one for pair in copies for one in pair)]
        there = iter(lane.send(*arrays) if arrays else ())
        if stale.size:
            self._pages.fill(next(there), self._blank)
        if cells is not None:
            self._table.update(next(there), next(there))
        loading = self._host.load(plan, lane)
        for _ in copies:
            self._ops.copy_blocks(self._pages, next(there), next(there))
        return loading

    def _run(
        self,
        plan: StepPlan,
        layout: Layout,
        lane: Lane,
        *,
        loading: StreamArrivals | ThreadArrivals | None,
        hosted: bool,
        refers: bool,
        keeps: bool,
    ) -> Made:
        """Compute a step kernel by kernel.

        `loading`: what arrives meanwhile. `hosted`: blocks of it are in host memory. `refers`: there are placeholders.
        `keeps`: its hidden states are wanted, too.
        """
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
        if hosted:
            batch = self._host.lend(batch, plan, layout, lane)
        if refers:
            token_ids = self._last.put_in(token_ids)
        if not keeps:
            return Made(self._model.forward(token_ids, batch, self._pages, sampled))
        hidden = self._model.hidden(token_ids, batch, self._pages)
        return Made(self._model.logits(hidden[sampled]), hidden)

    def _choose(self, sampled: Sequence[SequenceStep], made: Made, lane: Lane, asked: Asked) -> Values:
        """Sample a token of each row, and work out what else is asked for."""
        logits = made.logits
        if self._poison:
            logits = logits.nan_to_num(0.0)  # the step is an error; until it is waited for, samplers need numbers
        tokens = sample(logits, sampled, self._ops, lane.send)
        self._last.keep(tokens)
        scores = sampled_scores(tokens, logits, asked.scores, self._ops, lane.send) if asked.scores else None
        if made.hidden is None:
            return Values(tokens, scores)
        return Values(tokens, scores, *self._beside_logits(made.hidden, asked, lane))

    def _fetch(self, values: Values, made: Made, lane: Lane) -> bool:
        """Start the way back of a step's values; say whether what tells NaN among them is the last."""
        packed = values.packed()
        if self._poison:
            stale = made.logits.isnan().any() | packed.isnan().any()
            packed = torch.cat((packed, stale.to(packed.dtype)[None]))
        lane.fetch(packed)
        return self._poison

    def _beside_logits(
        self, hidden: torch.Tensor, asked: Asked, lane: Lane
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Return the log-probabilities of prompts, and the means of prompts to embed that end; None: nobody asks."""
        prompts = None
        if asked.prompts:
            prompts = prompt_scores(hidden, self._model.logits, asked.prompts, self._rows_at_once, self._ops, lane.send)
        return prompts, self._pool.add(hidden, asked.pools, lane.send)

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
                tells_hidden = self._model.embedding_size > 0
                plans = warm_up_plans(self._shape, max_context, config.max_batched_tokens, tells_hidden=tells_hidden)
                for plan in plans:
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
