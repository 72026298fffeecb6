"""A plan's loads beside its step: what is there when a layer asks, what they took, and what comes of a failure."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from engine.config import EngineConfig
from engine.errors import CoreError
from engine.model import arrivals
from engine.model.arrivals import StreamArrivals, ThreadArrivals
from engine.model.copier import ThreadCopier
from engine.model.decoder import Decoder
from engine.model.folder import ModelFolder
from engine.model.lanes import LOADS, WAITS, HostLane, Lanes, PinnedLane
from engine.model.link import Link
from engine.model.runner import ModelRunner
from engine.model.slabs import Slabs
from engine.request import BlockId, SequenceId, SlabId
from engine.step import BlockCopy, SequenceStep, StepPlan, TableWrite, Transfer
from kernels.batch import AttentionBatch
from kernels.ops import Ops, select_backend
from tests.engine.model.checkpoints import make_checkpoint, prompt_of
from tests.engine.model.device_like import CPU, HostEvent, device_like
from tests.engine.model.driver import GREEDY
from tests.engine.model.test_copier import SECONDS, NotedSide, wait_for
from tests.engine.model.test_slabs import NUM_SLABS, make_pages, moves


@pytest.fixture
def ops() -> Ops:
    """The kernels."""
    return select_backend("auto", device=CPU, dtype=torch.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    """A tiny Llama."""
    return make_checkpoint(tmp_path_factory.mktemp("llama"), "llama")


class Stepwise(Slabs):
    """An arena whose layers come one by one, as they are let through."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.steps = threading.Semaphore(0)

    def load_layers(self, *args: Any) -> None:
        """See `Slabs.load_layers`."""
        assert self.steps.acquire(timeout=SECONDS)
        super().load_layers(*args)


def test_a_layer_waits_for_its_own_part(ops: Ops) -> None:
    """When the wait for a layer is over that layer is there, and the ones behind it need not be."""
    pages = make_pages(ops)
    slabs = Stepwise(ops, pages, NUM_SLABS)
    slabs.arena.normal_()
    pages.data.fill_(float("nan"))
    copier = ThreadCopier(slabs)
    loading = ThreadArrivals(slabs, moves([4, 9], [7, 3]), copier)
    for layer in range(3):
        slabs.steps.release()
        loading.wait(layer)
        assert torch.equal(pages.data[layer, [4, 9]], slabs.arena[[7, 3], layer])
        assert pages.data[layer + 1 :].isnan().all()
        loading.wait(0)
    lane = HostLane()
    lane.begin()
    loading.end(lane)
    assert lane.seconds_of(LOADS) > 0
    copier.close()


def test_failure_ends_the_step(ops: Ops) -> None:
    """A load that fails lets no layer wait for ever, and the step says what went wrong."""
    slabs = Slabs(ops, make_pages(ops), NUM_SLABS)
    broken = "no such slab"

    def fail(*_: object) -> None:
        raise RuntimeError(broken)

    slabs.load_layers = fail  # type: ignore[method-assign,assignment]
    copier = ThreadCopier(slabs)
    loading = ThreadArrivals(slabs, moves([4], [7]), copier)
    for layer in range(3):
        loading.wait(layer)
    with pytest.raises(CoreError, match=broken):
        loading.end(HostLane())
    copier.close()


def test_groups_of_layers_have_marks(ops: Ops, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a stream, loads begin behind what was launched, in groups; the first layer of each waits for its mark."""
    side = NotedSide()
    slabs = Slabs(ops, make_pages(ops), NUM_SLABS)
    monkeypatch.setattr(arrivals, "_GROUP_BYTES", 2 * 2 * slabs.block_bytes // 3)
    monkeypatch.setattr(
        slabs, "load_layers", lambda blocks, places, first, end: side.log.append(f"loads {first} to {end}")
    )
    lane = PinnedLane(CPU, HostEvent)
    lane.begin()
    loading = StreamArrivals(slabs, side)
    for _ in range(2):
        side.log.clear()
        loading.start(moves([4, 9], [7, 3]), lane)
        assert side.log == [
            *("record 0 on steps", "stream 0 waits for 0"),
            *("loads 0 to 2", "record 1 on stream 0", "loads 2 to 3", "record 2 on stream 0"),
        ]
        side.log.clear()
        for layer in range(3):
            loading.wait(layer)
        assert side.log == ["steps waits for 1", "steps waits for 2"]
        loading.end(lane)
        assert side.log[2:] == ["steps waits for 1", "steps waits for 2"]


def make_runner(folder: ModelFolder, link: Link | None, backend: str = "auto") -> ModelRunner:
    """Return a small runner."""
    config = EngineConfig(
        backend=backend,
        dtype="float32",
        kv_bytes=40 * 4096,
        host_bytes=40 * 4096,
        block_size=8,
        poison=True,
        max_running=6,
        threads=1,
    )
    return ModelRunner(config, folder, link)


def spare() -> Link:
    """Return a CPU of which a core is left."""
    return Link(Lanes(HostLane), side=None, capture=None, spare=True)


LINKS: list[Callable[[], Link | None]] = [spare, device_like]


def prefilled(runner: ModelRunner, prompt: list[int]) -> None:
    """Compute 32 tokens in blocks 0 to 3 and store these in slabs 10 to 13."""
    part = SequenceStep(SequenceId(0), 0, 0, prompt[:32], None)
    write = TableWrite(0, 0, tuple(map(BlockId, range(4))))
    runner.launch(StepPlan(number=1, sequences=(part,), table_writes=(write,))).wait()
    runner.copy(Transfer(1, True, tuple(moves(list(range(4)), [10, 11, 12, 13]))))
    assert wait_for(runner._host._copier, 1) == [1]


def resumed(*, copies: tuple[BlockCopy, ...] = ()) -> StepPlan:
    """Return a step that loads these blocks as 20 to 23, and computes behind them."""
    poison = tuple(map(BlockId, [*range(5), *range(20, 26)]))
    return StepPlan(
        number=2,
        sequences=(SequenceStep(SequenceId(1), 2, 32, prompt_of(40)[32:], GREEDY),),
        table_writes=(TableWrite(2, 0, tuple(map(BlockId, range(20, 25)))),),
        poison=poison,
        loads=tuple(moves([20, 21, 22, 23], [10, 11, 12, 13])),
        copies=copies,
    )


@pytest.mark.parametrize("backend", ["reference", "auto"])
@pytest.mark.parametrize("make", LINKS)
def test_tokens_are_those_of_loading_first(
    folder: ModelFolder, make: Callable[[], Link | None], backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that begins before its blocks are there gives the same token, and its seconds are those of its parts."""
    prompt = prompt_of(40)
    tokens = []
    for worth in (0, 1 << 40):
        monkeypatch.setattr(arrivals, "WORTH_BYTES", worth)
        seen: list[bool] = []
        forward = Decoder.forward

        def noting(self: Decoder, ids: torch.Tensor, batch: AttentionBatch, *rest: Any) -> torch.Tensor:
            seen.append(batch.arrivals is not None)  # noqa: B023  # of this turn
            return forward(self, ids, batch, *rest)  # noqa: B023

        runner = make_runner(folder, make(), backend)
        with monkeypatch.context() as patch:
            patch.setattr(Decoder, "forward", noting)
            prefilled(runner, prompt)
            result = runner.launch(resumed()).wait()
        assert seen == [False, worth == 0 or make is device_like]
        assert result.seconds >= result.load_seconds > 0
        tokens.append(result.token_ids)
        runner.close()
    assert tokens[0] == tokens[1]


@pytest.mark.parametrize("make", LINKS)
def test_copies_read_what_is_loaded(
    folder: ModelFolder, make: Callable[[], Link | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan that copies a block which it loads does so behind the load: then all is loaded first."""
    monkeypatch.setattr(arrivals, "WORTH_BYTES", 0)
    runner = make_runner(folder, make())
    prefilled(runner, prompt_of(40))
    expected = runner.launch(resumed()).wait().token_ids
    plan = resumed(copies=(BlockCopy(BlockId(22), BlockId(30)),))
    writes = (TableWrite(2, 0, tuple(map(BlockId, (20, 21, 30, 23, 24)))),)
    moved = StepPlan(
        number=3,
        sequences=plan.sequences,
        table_writes=writes,
        poison=(*plan.poison, BlockId(30)),
        loads=plan.loads,
        copies=plan.copies,
    )
    assert runner.launch(moved).wait().token_ids == expected
    runner.close()


@pytest.mark.parametrize("make", [*LINKS, lambda: None])
def test_wiped_is_wiped(folder: ModelFolder, make: Callable[[], Link | None]) -> None:
    """Slabs and blocks of who is gone hold nothing of it, though transfers were at them; the others stay."""
    runner = make_runner(folder, make())
    prefilled(runner, prompt_of(40))
    held = [bytes(runner.slab_memory(SlabId(slab))) for slab in range(10, 14)]
    assert all(any(one) for one in held)
    runner.copy(Transfer(2, True, tuple(moves(list(range(4)), [20, 21, 22, 23]))))
    runner.copy(Transfer(3, False, tuple(moves([30, 31], [12, 13]))))
    runner.wipe([SlabId(11), SlabId(13), SlabId(21)])
    found = [bytes(runner.slab_memory(SlabId(slab))) for slab in (10, 11, 12, 13, 20, 21, 22, 23)]
    nothing = bytes(len(held[0]))
    assert found == [held[0], nothing, held[2], nothing, held[0], nothing, *held[2:]]
    runner.wipe_blocks([BlockId(1), BlockId(30)])
    runner.wipe_blocks([])
    data = runner._pages.data
    assert data[:, [1, 30]].isnan().all(), "under poison"
    assert sorted(wait_for(runner._host._copier, 2)) == [2, 3]
    assert torch.equal(data[:, 31], data[:, 3])
    runner.close()


def test_blocks_are_zeroed_without_poison(folder: ModelFolder) -> None:
    """What an erased block held is gone."""
    config = EngineConfig(dtype="float32", kv_bytes=40 * 4096, block_size=8, poison=False, threads=1)
    runner = ModelRunner(config, folder)
    with torch.inference_mode():
        runner._pages.data.fill_(1.0)
    runner.wipe_blocks([BlockId(3)])
    assert not runner._pages.data[:, 3].any()
    assert bool((runner._pages.data[:, [2, 4]] == 1.0).all())


def test_waits_are_part_of_no_copy(ops: Ops) -> None:
    """What layers waited is told beside what the copies took."""
    slabs = Stepwise(ops, make_pages(ops), NUM_SLABS)
    copier = ThreadCopier(slabs)
    loading = ThreadArrivals(slabs, moves([4], [7]), copier)
    waiting = threading.Thread(target=loading.wait, args=(2,))
    waiting.start()
    for _ in range(3):
        slabs.steps.release()
    waiting.join(SECONDS)
    assert not waiting.is_alive()
    lane = HostLane()
    lane.begin()
    loading.end(lane)
    assert 0 <= lane.seconds_of(WAITS) < SECONDS
    assert 0 < lane.seconds_of(LOADS) < SECONDS
    copier.close()
