"""A GPU's link over the CPU: lanes with buffers of their own, two block tables, and records that are run again.

All that a runner does for a GPU runs so without one, but for CUDA itself: copies are done when they are asked for, and
an event has come when it is set.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from engine.model.capture import Capture
from engine.model.lanes import Array, Lanes, PinnedLane
from engine.model.link import Link

CPU = torch.device("cpu")


class HostEvent:
    """A mark in the host's time."""

    def __init__(self) -> None:
        self.at = 0.0

    def record(self) -> None:
        """Set the mark."""
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        """Return: all is done by now."""

    def query(self) -> bool:
        """Whether it is set."""
        return self.at > 0

    def wait(self) -> None:
        """Return: all is done by now."""

    def elapsed_time(self, end_event: Any) -> float:
        """Return the milliseconds between."""
        return float(end_event.at - self.at) * 1e3


class HostStream:
    """A stream on which all is done when it is launched."""

    def entered(self) -> AbstractContextManager[object]:
        """Make it the current one for a while."""
        return nullcontext()


class HostSide:
    """Streams and marks of a device whose work is done when it is launched."""

    def stream(self) -> HostStream:
        """Return a new stream."""
        return HostStream()

    def event(self) -> HostEvent:
        """Return a new mark."""
        return HostEvent()

    def send(self, array: Array) -> torch.Tensor:
        """Return an array as a tensor of its own."""
        return torch.from_numpy(array.copy())


@dataclass
class Rerun:
    """Runs what it has recorded again, and counts."""

    recorded: int = 0
    replays: list[int] = field(default_factory=list)  # numbers of records

    def __call__(self, run: Callable[[], None]) -> Callable[[], None]:
        """See `Capture.__call__`."""
        run()
        number = self.recorded
        self.recorded += 1

        def replay() -> None:
            self.replays.append(number)
            run()

        return replay

    def held_bytes(self) -> int:
        """See `Capture.held_bytes`."""
        return 0


def device_like(capture: Capture | None = None) -> Link:
    """Return a link as to a GPU; None: nothing can be recorded."""
    made = None if capture is None else lambda spared_bytes: capture
    return Link(Lanes(lambda: PinnedLane(CPU, HostEvent)), side=HostSide(), capture=made)
