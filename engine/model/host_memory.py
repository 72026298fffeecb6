"""All that a runner does with blocks in host memory: the arena, a plan's copies, transfers, and attention over them."""

from collections.abc import Sequence
from dataclasses import replace

from engine.errors import CoreError
from engine.model import arrivals
from engine.model.arrivals import StreamArrivals, ThreadArrivals
from engine.model.copier import Copier, ThreadCopier
from engine.model.lanes import LOADS, STORES, Lane
from engine.model.layout import Layout
from engine.model.link import Link
from engine.model.slabs import Slabs
from engine.model.stream_copier import StreamCopier
from engine.model.streaming import Streaming, check_hosted, in_place
from engine.request import BlockId, SlabId
from engine.step import CacheShape, StepPlan, Transfer, TransferDone
from kernels.batch import AttentionBatch
from kernels.ops import Ops
from kernels.pages import Pages


class HostMemory:
    """Of one runner; see `engine.step.Runner` for what it promises."""

    def __init__(self, ops: Ops, pages: Pages, shape: CacheShape, link: Link) -> None:
        """Reserve the arena.

        Raises:
            ConfigError: the host has no room for it.
        """
        self._shape, self._link = shape, link
        self._slabs = Slabs(ops, pages, shape.num_slabs)
        self._beside = self._slabs.beside()
        self._copier: Copier = ThreadCopier(self._beside) if link.side is None else StreamCopier(self._slabs, link.side)
        self._arrivals = None if link.side is None else StreamArrivals(self._slabs, link.side)
        self._streaming: Streaming | None = None  # without one, kernels read slabs in place
        if link.side is not None and shape.streams:
            self._streaming = Streaming(ops, self._slabs, pages.shape, link.side)

    def store(self, plan: StepPlan, lane: Lane) -> None:
        """Store what a plan stores, in the order of launches."""
        if plan.stores:
            with lane.timed(STORES):
                self._slabs.store(plan.stores, lane.send_one)

    def load(self, plan: StepPlan, lane: Lane) -> StreamArrivals | ThreadArrivals | None:
        """Start a plan's loads, beside the step where nothing but its layers needs them and it is worth it.

        Returns:
            What goes on while the step computes; None: nothing does.
        """
        if not plan.loads:
            return None
        if not plan.copies:  # which may read what is loaded
            if self._arrivals is not None:
                return self._arrivals.start(plan.loads, lane)
            worth = self._link.spare and len(plan.loads) * self._shape.block_bytes >= arrivals.WORTH_BYTES
            if worth and isinstance(self._copier, ThreadCopier):
                return ThreadArrivals(self._beside, plan.loads, self._copier)
        with lane.timed(LOADS):
            self._slabs.load(plan.loads, lane.send_one)
        return None

    def needed(self, plan: StepPlan) -> bool:
        """Whether a step's attention reads host memory.

        Raises:
            CoreError: it cannot, or a sequence has more blocks there than the tokens before this step fill.
        """
        needed = check_hosted(plan.sequences, self._shape.block_size, plan.number)
        if needed and not self._shape.streams:
            raise CoreError(f"step {plan.number} has blocks in host memory, which this runner's attention cannot read")
        return needed

    def lend(self, batch: AttentionBatch, plan: StepPlan, layout: Layout, lane: Lane) -> AttentionBatch:
        """Return a step's batch with the blocks that are in host memory alone."""
        if self._streaming is not None:
            return replace(batch, stream=self._streaming.start(plan.sequences, layout, batch, lane))
        return replace(batch, hosted=in_place(plan.sequences, self._slabs, self._shape.block_size, lane))

    def copy(self, transfer: Transfer) -> None:
        """See `Runner.copy`."""
        self._copier.copy(transfer)

    def copied(self) -> list[TransferDone]:
        """See `Runner.copied`."""
        return self._copier.copied()

    def memory(self, slab: SlabId) -> memoryview:
        """See `Runner.slab_memory`."""
        return self._slabs.memory(slab)

    def wipe(self, slabs: Sequence[SlabId]) -> None:
        """See `Runner.wipe`: the host writes, and waits, so that it may write again to who gets a slab next."""
        self._copier.settle(slabs=slabs)
        self._link.finish()
        self._slabs.wipe(slabs)

    def settle(self, blocks: Sequence[BlockId]) -> None:
        """Block until no transfer reads or writes these."""
        self._copier.settle(blocks=blocks)

    def close(self) -> None:
        """End what copies beside the steps; what has not begun is dropped."""
        self._copier.close()
