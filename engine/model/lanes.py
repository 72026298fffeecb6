"""The ways between host and device, one lane a step in flight: a step's arrays go out, its tokens come back.

    lane = lanes.take()              # the next step's
    lane.begin()
    ids, rows = lane.send(ids, rows) # host arrays to the device, in one copy
    lane.fetch(tokens)               # starts the way back
    lane.end()
    tokens, seconds = lane.wait()    # the step's one wait for the device

    with lane.timed(STORES): ...     # measures a part of the step: lane.seconds_of(STORES), once it was waited for
    lane.note(LOADS, seconds)        # the same of what was measured elsewhere

On a GPU all copies go through pinned memory and nothing but `wait` waits: a copy from ordinary memory would hold the
host until the device has come that far. On the CPU nothing is copied.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from engine.errors import CoreError

Array = np.ndarray[Any, Any]

STORES, LOADS, WAITS = range(3)  # parts of a step that are measured; waits are those of layers for loads
IN_FLIGHT = 2  # steps: one that runs, one that is launched meanwhile
_ALIGNED = 64  # bytes; Triton compiles a kernel again for a pointer that is not a multiple of 16
_LEAST = 1 << 16  # bytes of a pinned buffer; it grows with the steps
_TYPES = {
    np.dtype(np.bool_): torch.bool,
    np.dtype(np.int32): torch.int32,
    np.dtype(np.int64): torch.int64,
    np.dtype(np.float32): torch.float32,
    np.dtype(np.float64): torch.float64,
}


class Event(Protocol):
    """A mark on the device's stream, as `torch.cuda.Event` is one."""

    def record(self) -> None:
        """Set the mark behind all that has been launched."""
        ...

    def synchronize(self) -> None:
        """Block until the device has passed the mark; return at once if it was never set."""
        ...

    def elapsed_time(self, end_event: Any) -> float:
        """Return the milliseconds from this mark to another; the device has passed both."""
        ...

    def query(self) -> bool:
        """Whether the device has passed the mark."""
        ...

    def wait(self) -> None:
        """Let what is launched from now on wait for the mark, on the current stream; the host goes on."""
        ...


class Place(NamedTuple):
    """Where an array lies in a buffer of bytes."""

    start: int
    end: int
    dtype: torch.dtype
    shape: tuple[int, ...]


def places(arrays: Sequence[Array]) -> list[Place]:
    """Return where arrays lie behind each other, each aligned."""
    found, at = [], 0
    for array in arrays:
        found.append(Place(at, at + array.nbytes, _TYPES[array.dtype], array.shape))
        at += -(-array.nbytes // _ALIGNED) * _ALIGNED
    return found


def pack(arrays: Sequence[Array], into: Array) -> int:
    """Write arrays to their places in `into`, uint8, and return the bytes up to the end of the last one."""
    end = 0
    for array, place in zip(arrays, places(arrays), strict=True):
        into[place.start : place.end] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        end = place.end
    return end


def unpack(buffer: torch.Tensor, arrays: Sequence[Array]) -> tuple[torch.Tensor, ...]:
    """Return what `pack` has written for `arrays`, as views of `buffer`, uint8."""
    return tuple(buffer[one.start : one.end].view(one.dtype).view(one.shape) for one in places(arrays))


class Lane(ABC):
    """What one step in flight has to itself."""

    def __init__(self) -> None:
        self.busy = False  # ended and not yet waited for

    @abstractmethod
    def begin(self) -> None:
        """Start the step: its clock, and its buffers from the beginning."""

    @abstractmethod
    def send(self, *arrays: Array) -> tuple[torch.Tensor, ...]:
        """Return the arrays on the device. There they stay; here they may be shared and must not be written again."""

    def send_one(self, array: Array) -> torch.Tensor:
        """Return an array on the device, see `send`."""
        return self.send(array)[0]

    @abstractmethod
    def fill(self, target: torch.Tensor, arrays: Sequence[Array]) -> None:
        """Pack the arrays into `target`, uint8 on the device; see `unpack`."""

    @abstractmethod
    def fetch(self, values: torch.Tensor) -> None:
        """Start to bring the step's result `[N]` to the host; once a step."""

    @abstractmethod
    def timed(self, part: int) -> AbstractContextManager[None]:
        """Measure what is launched within, on the current stream. Times of one part add up."""

    @abstractmethod
    def note(self, part: int, seconds: float) -> None:
        """Add what was measured elsewhere."""

    @abstractmethod
    def seconds_of(self, part: int) -> float:
        """Return what was measured of a part, 0 for nothing; the step has been waited for."""

    def end(self) -> None:
        """Close the step: nothing more is sent or fetched."""
        self.busy = True

    def wait(self) -> tuple[list[Any], float]:
        """Block until the step is done, and return its result and the seconds that it took on the device."""
        self.busy = False
        return self._wait()

    @abstractmethod
    def _wait(self) -> tuple[list[Any], float]: ...


class HostLane(Lane):
    """Of a step on the CPU, which is done when it has been launched."""

    def __init__(self) -> None:
        super().__init__()
        self._began = self._seconds = 0.0
        self._parts: dict[int, float] = {}
        self._values: list[Any] = []

    def begin(self) -> None:
        """See `Lane.begin`."""
        self._parts = {}
        self._began = time.perf_counter()

    def send(self, *arrays: Array) -> tuple[torch.Tensor, ...]:
        """See `Lane.send`: the same memory."""
        return tuple(torch.from_numpy(array) for array in arrays)

    def fill(self, target: torch.Tensor, arrays: Sequence[Array]) -> None:
        """See `Lane.fill`."""
        pack(arrays, target.numpy())

    @contextmanager
    def timed(self, part: int) -> Iterator[None]:
        """See `Lane.timed`."""
        began = time.perf_counter()
        yield
        self.note(part, time.perf_counter() - began)

    def note(self, part: int, seconds: float) -> None:
        """See `Lane.note`."""
        self._parts[part] = self._parts.get(part, 0.0) + seconds

    def seconds_of(self, part: int) -> float:
        """See `Lane.seconds_of`."""
        return self._parts.get(part, 0.0)

    def fetch(self, values: torch.Tensor) -> None:
        """See `Lane.fetch`."""
        self._values = values.tolist()

    def end(self) -> None:
        """See `Lane.end`."""
        super().end()
        self._seconds = time.perf_counter() - self._began

    def _wait(self) -> tuple[list[Any], float]:
        return self._values, self._seconds


class PinnedLane(Lane):
    """Of a step on a GPU."""

    def __init__(self, device: torch.device, event: Callable[[], Event]) -> None:
        super().__init__()
        self._device, self._pinned = device, device.type == "cuda"
        self._out, self._back = self._buffer(_LEAST), self._buffer(_LEAST)
        self._used = 0  # bytes of `_out` that copies of this step read
        self._values = self._back[:0]
        self._began, self._ended = event(), event()
        self._event = event
        self._marks: list[tuple[Event, Event]] = []  # made when they are first needed
        self._timed: list[int] = []  # the part that each of the first marks measures in this step
        self._noted: dict[int, float] = {}

    def begin(self) -> None:
        """See `Lane.begin`. The step before in this lane has been waited for, so that its copies are over."""
        self._ended.synchronize()
        self._used = 0
        self._values = self._back[:0]
        self._timed.clear()
        self._noted.clear()
        self._began.record()

    def send(self, *arrays: Array) -> tuple[torch.Tensor, ...]:
        """See `Lane.send`."""
        packed = self._packed(arrays)
        there = torch.empty(packed.shape, dtype=torch.uint8, device=self._device)
        return unpack(there.copy_(packed, non_blocking=True), arrays)

    @contextmanager
    def timed(self, part: int) -> Iterator[None]:
        """See `Lane.timed`."""
        if len(self._timed) == len(self._marks):
            self._marks.append((self._event(), self._event()))
        began, ended = self._marks[len(self._timed)]
        self._timed.append(part)
        began.record()
        yield
        ended.record()

    def note(self, part: int, seconds: float) -> None:
        """See `Lane.note`."""
        self._noted[part] = self._noted.get(part, 0.0) + seconds

    def seconds_of(self, part: int) -> float:
        """See `Lane.seconds_of`."""
        marks = [pair for timed, pair in zip(self._timed, self._marks, strict=False) if timed == part]
        return self._noted.get(part, 0.0) + sum(began.elapsed_time(ended) for began, ended in marks) / 1e3

    def fill(self, target: torch.Tensor, arrays: Sequence[Array]) -> None:
        """See `Lane.fill`."""
        packed = self._packed(arrays)
        target[: packed.shape[0]].copy_(packed, non_blocking=True)

    def fetch(self, values: torch.Tensor) -> None:
        """See `Lane.fetch`."""
        if self._back.shape[0] < values.nbytes:
            self._back = self._buffer(values.nbytes)
        self._values = self._back[: values.nbytes].view(values.dtype)
        self._values.copy_(values, non_blocking=True)

    def end(self) -> None:
        """See `Lane.end`."""
        super().end()
        self._ended.record()

    def _wait(self) -> tuple[list[Any], float]:
        self._ended.synchronize()
        return self._values.tolist(), self._began.elapsed_time(self._ended) / 1e3

    def _packed(self, arrays: Sequence[Array]) -> torch.Tensor:
        """Write arrays to pinned memory that no copy of this step reads yet."""
        needed = places(arrays)[-1].end
        if self._used + needed > self._out.shape[0]:
            self._out, self._used = self._buffer(self._used + needed), 0  # torch frees the old one when it is read
        packed = self._out[self._used : self._used + needed]
        pack(arrays, packed.numpy())
        self._used += -(-needed // _ALIGNED) * _ALIGNED
        return packed

    def _buffer(self, num_bytes: int) -> torch.Tensor:
        size = 1 << (num_bytes - 1).bit_length()
        return torch.empty(size, dtype=torch.uint8, pin_memory=self._pinned)


class Lanes:
    """The lanes of steps in flight, taken in turn."""

    def __init__(self, make: Callable[[], Lane]) -> None:
        self._lanes = [make() for _ in range(IN_FLIGHT)]
        self._next = 0

    def take(self) -> Lane:
        """Return the next step's lane.

        Raises:
            CoreError: the step before last has not been waited for.
        """
        lane = self._lanes[self._next]
        if lane.busy:
            raise CoreError(f"a step was launched while {IN_FLIGHT} before it had not been waited for")
        self._next = (self._next + 1) % IN_FLIGHT
        return lane
