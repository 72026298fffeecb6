"""How the host reaches the device: its lanes, what runs beside them, and how launches are recorded there."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch

from engine.model.capture import Capture, CudaCapture
from engine.model.lanes import Array, Event, HostLane, Lanes, PinnedLane
from kernels.threads import usable_cores


class Stream(Protocol):
    """What is launched on it runs in order, beside other streams."""

    def entered(self) -> AbstractContextManager[object]:
        """Make it the current one for a while."""
        ...


class Side(Protocol):
    """What runs beside a device's steps."""

    def stream(self) -> Stream:
        """Return a new stream."""
        ...

    def event(self) -> Event:
        """Return a new mark."""
        ...

    def send(self, array: Array) -> torch.Tensor:
        """Return an array on the device, for the current stream; nothing waits."""
        ...


@dataclass(frozen=True, slots=True)
class Link:
    """From the host to one device, for one runner."""

    lanes: Lanes
    side: Side | None  # None: one memory, and a launch returns when all is computed
    capture: Callable[[int], Capture] | None  # given bytes to leave free; None: launches cannot be recorded
    spare: bool = True  # whether copies beside the steps take nothing from them: on a CPU, whether a core is left

    @property
    def shared(self) -> bool:
        """Whether host and device have one memory."""
        return self.side is None

    def finish(self) -> None:
        """Block until the device has done all that was launched on the current stream."""
        if self.side is not None:
            mark = self.side.event()
            mark.record()
            mark.synchronize()


class CudaStream:
    """A stream of a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def entered(self) -> AbstractContextManager[object]:
        """See `Stream.entered`."""
        return torch.cuda.stream(self._stream)


class CudaSide:
    """Streams and events of a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def stream(self) -> Stream:
        """See `Side.stream`."""
        return CudaStream(self._device)

    def event(self) -> Event:
        """See `Side.event`."""
        event: Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return event

    def send(self, array: Array) -> torch.Tensor:
        """See `Side.send`: torch keeps the pinned copy until the device has read it."""
        return torch.from_numpy(array).pin_memory().to(self._device, non_blocking=True)


def link_to(device: torch.device) -> Link:
    """Return the link to the CPU, whose steps run on torch's number of threads, or to a GPU."""
    if device.type == "cpu":
        return Link(Lanes(HostLane), side=None, capture=None, spare=usable_cores() > torch.get_num_threads())
    side = CudaSide(device)
    return Link(Lanes(lambda: PinnedLane(device, side.event)), side=side, capture=partial(CudaCapture, device))
