"""Transfers beside the steps: what they copy, when they end, who waits for them, and what is left of them."""

import gc
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from engine.errors import CoreError
from engine.model.copier import Copier, ThreadCopier
from engine.model.slabs import Slabs
from engine.model.stream_copier import StreamCopier
from engine.request import BlockId, SlabId
from engine.step import Transfer
from kernels.ops import Ops, select_backend
from tests.engine.model.device_like import HostSide
from tests.engine.model.test_slabs import CPU, NUM_BLOCKS, NUM_SLABS, make_pages, moves

SECONDS = 60.0  # that anything may take on a slow machine

Make = Callable[[Slabs], Copier]


@pytest.fixture(params=["reference", "auto"])
def ops(request: pytest.FixtureRequest) -> Ops:
    """The kernels."""
    return select_backend(request.param, device=CPU, dtype=torch.float32)


@pytest.fixture(params=["thread", "streams"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Both kinds of copiers; those that were made are closed."""
    made: list[Copier] = []

    def start(slabs: Slabs) -> Copier:
        slabs._shared = request.param == "thread"  # staged, as on a GPU
        made.append(ThreadCopier(slabs.beside()) if slabs._shared else StreamCopier(slabs, HostSide()))
        return made[-1]

    yield start
    for one in made:
        one.close()


class Gate(Slabs):
    """An arena whose copies wait until they are let through, and note what they copy."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.through, self.entered = threading.Event(), threading.Event()
        self.copied: list[int] = []

    def store(self, *args: Any) -> None:
        """See `Slabs.store`."""
        self._pass(args[0])
        super().store(*args)

    def load(self, *args: Any) -> None:
        """See `Slabs.load`."""
        self._pass(args[0])
        super().load(*args)

    def _pass(self, piece: Any) -> None:
        self.entered.set()
        assert self.through.wait(SECONDS)
        self.copied += [move.block for move in piece]


def wait_for(copier: Copier, count: int) -> list[int]:
    """Return the numbers of the next transfers that end."""
    found: list[int] = []
    deadline = time.monotonic() + SECONDS
    while len(found) < count:
        assert time.monotonic() < deadline, f"only {found} ended"
        for done in copier.copied():
            assert done.seconds >= 0
            found.append(done.number)
        time.sleep(0)
    return found


@pytest.mark.parametrize("head_dim", [16, 4096])
def test_what_goes_out_comes_back(ops: Ops, make: Make, head_dim: int) -> None:
    """Many transfers at once, in pieces of one block and of many: every block arrives, each transfer ends once."""
    pages, chance = make_pages(ops, head_dim=head_dim), random.Random(3)
    before, slabs = pages.data.clone(), Slabs(ops, pages, NUM_SLABS)
    copier = make(slabs)
    out, places = chance.sample(range(NUM_BLOCKS), 20), chance.sample(range(NUM_SLABS), 20)
    cuts = [(0, 1), (1, 4), (4, 4), (4, 15), (15, 20)]
    for number, (start, end) in enumerate(cuts):
        copier.copy(Transfer(number, True, tuple(moves(out[start:end], places[start:end]))))
    assert sorted(wait_for(copier, len(cuts))) == list(range(len(cuts)))
    pages.data.fill_(float("nan"))
    back = chance.sample(range(NUM_BLOCKS), 20)
    for number, (start, end) in enumerate(cuts, 10):
        copier.copy(Transfer(number, False, tuple(moves(back[start:end], places[start:end]))))
    assert sorted(wait_for(copier, len(cuts))) == [10, 11, 12, 13, 14]
    assert torch.equal(pages.data[:, back], before[:, out])
    assert copier.copied() == []


def test_nobody_waits_for_a_transfer(ops: Ops) -> None:
    """The host goes on while blocks are copied, and `copied` tells of nothing that is not over."""
    pages = make_pages(ops)
    gate = Gate(ops, pages, NUM_SLABS)
    copier = ThreadCopier(gate)
    copier.copy(Transfer(1, True, tuple(moves([1, 2], [1, 2]))))
    assert gate.entered.wait(SECONDS)
    assert copier.copied() == []
    gate.through.set()
    assert wait_for(copier, 1) == [1]
    copier.close()


def test_each_way_has_its_turn(ops: Ops) -> None:
    """A load does not stand behind all the pieces of a store that came before it; what a step needs goes first."""
    pages = make_pages(ops, head_dim=4096)  # a piece is one block
    gate = Gate(ops, pages, NUM_SLABS)
    assert gate.most == 1
    gate.wipe([SlabId(slab) for slab in range(NUM_SLABS)])
    copier = ThreadCopier(gate)
    copier.copy(Transfer(1, True, tuple(moves([0, 1, 2, 3], [0, 1, 2, 3]))))
    assert gate.entered.wait(SECONDS)
    copier.copy(Transfer(2, False, tuple(moves([10, 11], [10, 11]))))
    copier.first(lambda: gate.copied.append(-1))
    gate.through.set()
    assert wait_for(copier, 2) == [2, 1]
    assert gate.copied == [0, -1, 10, 1, 11, 2, 3]
    copier.close()


def test_settled_is_over(ops: Ops, make: Make) -> None:
    """Who waits for a block or a slab finds what a transfer does with it done, and nothing else is waited for."""
    pages = make_pages(ops, head_dim=4096)
    before, slabs = pages.data.clone(), Slabs(ops, pages, NUM_SLABS)
    copier = make(slabs)
    copier.settle(slabs=[SlabId(1)])
    for number in range(3):
        blocks = [3 * number, 3 * number + 1, 3 * number + 2]
        copier.copy(Transfer(number, True, tuple(moves(blocks, blocks))))
    copier.settle(blocks=[BlockId(4)])
    assert torch.equal(slabs.arena[3:6], before[:, 3:6].transpose(0, 1))
    copier.settle(slabs=[SlabId(8)])
    assert torch.equal(slabs.arena[:9], before[:, :9].transpose(0, 1))
    copier.settle(blocks=[BlockId(30)], slabs=[SlabId(20)])
    assert sorted(wait_for(copier, 3)) == [0, 1, 2]


def test_failure_is_told(ops: Ops) -> None:
    """What goes wrong in the thread ends whoever asks for transfers, or waits for one; nobody waits for ever."""
    copier = ThreadCopier(Slabs(ops, make_pages(ops), NUM_SLABS))
    wrong = "no such slab"

    def fail(*_: object) -> None:
        raise RuntimeError(wrong)

    copier._work._slabs.store = fail  # type: ignore[method-assign,assignment]
    copier.copy(Transfer(1, True, tuple(moves([1], [1]))))
    copier.copy(Transfer(2, True, tuple(moves([2], [2]))))
    with pytest.raises(CoreError, match=wrong):
        copier.settle(blocks=[BlockId(2)])
    with pytest.raises(CoreError, match=wrong):
        wait_for(copier, 1)
    copier.close()


def test_closing_drops_what_has_not_begun(ops: Ops) -> None:
    """The thread ends behind the piece that it is at, and nothing is taken any more; to close again does nothing."""
    pages = make_pages(ops, head_dim=4096)
    gate = Gate(ops, pages, NUM_SLABS)
    copier = ThreadCopier(gate)
    copier.copy(Transfer(1, True, tuple(moves([0, 1, 2], [0, 1, 2]))))
    assert gate.entered.wait(SECONDS)
    closing = threading.Thread(target=copier.close)
    closing.start()
    deadline = time.monotonic() + SECONDS
    while any(copier._work._lines):
        assert time.monotonic() < deadline
        time.sleep(0)
    gate.through.set()
    closing.join(SECONDS)
    assert not closing.is_alive()
    assert gate.copied == [0]
    copier.close()
    with pytest.raises(CoreError, match="closed"):
        copier.copy(Transfer(2, True, tuple(moves([0], [0]))))


def test_thread_ends_with_its_copier(ops: Ops) -> None:
    """A copier that nobody has any more leaves no thread behind."""
    copier = ThreadCopier(Slabs(ops, make_pages(ops), NUM_SLABS))
    copier.copy(Transfer(1, True, tuple(moves([1], [1]))))
    assert wait_for(copier, 1) == [1]
    (thread,) = copier._thread._threads
    del copier
    gc.collect()
    thread.join(SECONDS)
    assert not thread.is_alive()


class NotedEvent:
    """A mark that writes down what is done with it."""

    def __init__(self, side: "NotedSide", number: int) -> None:
        self._side, self.number, self.passed = side, number, False

    def record(self) -> None:
        """Set the mark."""
        self._side.log.append(f"record {self.number} on {self._side.current}")

    def wait(self) -> None:
        """Let the current stream wait."""
        self._side.log.append(f"{self._side.current} waits for {self.number}")

    def synchronize(self) -> None:
        """Let the host wait."""
        self._side.log.append(f"host waits for {self.number}")

    def query(self) -> bool:
        """Whether the test says so."""
        return self.passed

    def elapsed_time(self, end_event: Any) -> float:
        """Return a second for each mark between."""
        return 1000.0 * float(end_event.number - self.number)


class NotedSide(HostSide):
    """Streams of which one is current."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.current, self.events, self.num_streams = "steps", list[NotedEvent](), 0

    def event(self) -> Any:
        """Return a new mark."""
        self.events.append(NotedEvent(self, len(self.events)))
        return self.events[-1]

    def stream(self) -> Any:
        """Return a new stream."""
        self.num_streams += 1
        return NotedStream(self, f"stream {self.num_streams - 1}")


class NotedStream:
    """One of them."""

    def __init__(self, side: NotedSide, name: str) -> None:
        self._side, self._name = side, name

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Make it the current one for a while."""
        before, self._side.current = self._side.current, self._name
        yield
        self._side.current = before


def test_streams_wait_for_what_was_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transfer's streams wait for a mark behind all that was launched before it, and its end is on both of them."""
    side = NotedSide()
    ops = select_backend("reference", device=CPU, dtype=torch.float32)
    slabs = Slabs(ops, make_pages(ops, head_dim=4096), NUM_SLABS)
    monkeypatch.setattr(
        slabs,
        "store",
        lambda piece, send: side.log.append(f"{side.current} stores {[move.block for move in piece]}"),
    )
    copier = StreamCopier(slabs, side)
    copier.copy(Transfer(5, True, tuple(moves([0, 1, 2], [0, 1, 2]))))
    assert side.log == [
        *("record 0 on steps", "stream 2 waits for 0", "record 1 on stream 2", "stream 2 stores [0]"),
        *("stream 2 stores [2]", "record 2 on stream 2"),
        *("stream 3 waits for 0", "record 3 on stream 3", "stream 3 stores [1]", "record 4 on stream 3"),
    ]
    side.events[2].passed = True
    assert copier.copied() == []
    side.events[4].passed = True
    (done,) = copier.copied()
    assert (done.number, done.seconds) == (5, 1.0)
