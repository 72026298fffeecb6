"""How the host reaches the device: its lanes, whether they share memory, and how launches are recorded there."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from engine.model.capture import Capture, CudaCapture
from engine.model.lanes import HostLane, Lanes, PinnedLane


@dataclass(frozen=True, slots=True)
class Link:
    """From the host to one device, for one runner."""

    lanes: Lanes
    shared: bool  # one memory, and a launch returns when all is computed
    capture: Callable[[int], Capture] | None  # given bytes to leave free; None: launches cannot be recorded


def link_to(device: torch.device) -> Link:
    """Return the link to the CPU or to a GPU."""
    if device.type == "cpu":
        return Link(Lanes(HostLane), shared=True, capture=None)
    event = partial(torch.cuda.Event, enable_timing=True)
    return Link(Lanes(lambda: PinnedLane(device, event)), shared=False, capture=partial(CudaCapture, device))
