"""A plan's loads, layer by layer, while its step computes: a layer waits only until its own part is there.

    loads    layer 0 │ layer 1 │ layer 2 │ …        the copier's thread, or a stream of its own
    step             │ layer 0 ▒▒▒▒▒│ layer 1 ▒▒▒▒▒│ …

What a layer waited is told beside the copies' own time: see `StepResult`. On a CPU all of whose cores compute, loads
come first: 33 MB, of 1,424 tokens of SmolLM2-135M, take 1.5 ms before a step of 17 ms, and beside it as long.
"""

import time
from collections.abc import Sequence

import torch

from engine.errors import CoreError
from engine.model.copier import ThreadCopier
from engine.model.lanes import LOADS, WAITS, Event, Lane
from engine.model.link import Side
from engine.model.slabs import Slabs, indices
from engine.step import SlabMove
from kernels.batch import Arrivals

WORTH_BYTES = 4 << 20  # of loads on a CPU: fewer are there before a thread has begun
_GROUP_BYTES = 1 << 20  # loaded at once by a stream: a layer of a few blocks is not worth a launch
_NAP_SECONDS = 2e-5  # between two looks


class ThreadArrivals(Arrivals):
    """Loads by the copier's thread; a number in memory says how many layers are there."""

    def __init__(self, slabs: Slabs, moves: Sequence[SlabMove], copier: ThreadCopier) -> None:
        """Start the loads; `slabs` are over ops that run beside others."""
        self._slabs, self._moves = slabs, moves
        self._num_layers = slabs.arena.shape[1]
        self.counter = torch.zeros(1, dtype=torch.int64)
        self.waited = torch.zeros(1, dtype=torch.float64)
        self._layers = self.counter.numpy()
        self._seconds = 0.0
        self._error: Exception | None = None
        copier.first(self._load)

    def wait(self, layer: int) -> None:
        """See `Arrivals.wait`."""
        if self._layers[0] > layer:
            return
        began = time.perf_counter()
        while self._layers[0] <= layer:
            time.sleep(_NAP_SECONDS)
        self.waited[0] += time.perf_counter() - began

    def end(self, lane: Lane) -> None:
        """Tell the lane how long it took; all layers have been waited for.

        Raises:
            CoreError: a copy failed.
        """
        self.wait(self._num_layers - 1)
        if self._error is not None:
            raise CoreError(f"a step's blocks could not be loaded: {self._error}") from self._error
        lane.note(LOADS, self._seconds)
        lane.note(WAITS, float(self.waited[0]))

    def _load(self) -> None:
        blocks, places = map(torch.from_numpy, indices(self._moves))
        began = time.perf_counter()
        try:
            for layer in range(self._num_layers):
                self._slabs.load_layers(blocks, places, layer, layer + 1)
                self._seconds = time.perf_counter() - began
                self._layers[0] = layer + 1
        except Exception as error:  # noqa: BLE001  # raised by `end`: the step must not wait for ever
            self._error = error
            self._layers[0] = self._num_layers


class StreamArrivals(Arrivals):
    """Loads by a stream of their own, in groups of layers; a mark behind each says that it is there."""

    counter = waited = None

    def __init__(self, slabs: Slabs, side: Side) -> None:
        """Prepare for any number of steps, one after the other."""
        self._slabs, self._side = slabs, side
        self._stream = side.stream()
        self._num_layers = slabs.arena.shape[1]
        self._marks: list[Event] = []  # made when they are first needed
        self._groups: dict[int, Event] = {}  # the mark behind each, by the group's first layer
        self._lane: Lane | None = None

    def start(self, moves: Sequence[SlabMove], lane: Lane) -> "StreamArrivals":
        """Launch the loads of one step, behind all that has been launched."""
        blocks, places = indices(moves)
        size = max(1, _GROUP_BYTES * self._num_layers // (len(moves) * self._slabs.block_bytes))
        firsts = range(0, self._num_layers, size)
        while len(self._marks) <= len(firsts):
            self._marks.append(self._side.event())
        self._marks[0].record()
        self._lane, self._groups = lane, {}
        with self._stream.entered():
            self._marks[0].wait()
            with lane.timed(LOADS):
                there = [self._side.send(one) for one in (blocks, places)]
                for first, mark in zip(firsts, self._marks[1:], strict=False):
                    self._slabs.load_layers(there[0], there[1], first, min(first + size, self._num_layers))
                    mark.record()
                    self._groups[first] = mark
        return self

    def wait(self, layer: int) -> None:
        """See `Arrivals.wait`: the device waits, at the first layer of a group, not the host."""
        if (mark := self._groups.get(layer)) is not None:
            assert self._lane is not None
            with self._lane.timed(WAITS):
                mark.wait()

    def end(self, lane: Lane) -> None:
        """Launch a wait for all of it."""
        for mark in self._groups.values():
            mark.wait()
