"""The ways between host and device."""

import numpy as np
import pytest
import torch

from engine.errors import CoreError
from engine.model.lanes import IN_FLIGHT, LOADS, STORES, WAITS, HostLane, Lane, Lanes, PinnedLane
from tests.engine.model.device_like import CPU, HostEvent

ARRAYS = (
    np.arange(5, dtype=np.int64),
    np.zeros(0, dtype=np.int64),
    np.array([1.5, -2.0, 3.25], dtype=np.float32),
    np.arange(12, dtype=np.int32).reshape(3, 4),
    np.array([True, False, True]),
    np.array([0.1], dtype=np.float64),
    np.arange(10, dtype=np.int32)[::2],
)


class LoggingEvent(HostEvent):
    """Writes down when it is set and waited for."""

    def __init__(self, log: list[str], name: str) -> None:
        super().__init__()
        self._log, self._name = log, name

    def record(self) -> None:
        """Set the mark."""
        self._log.append(f"record {self._name}")
        super().record()

    def synchronize(self) -> None:
        """Return at once."""
        self._log.append(f"wait {self._name}")


def pinned() -> PinnedLane:
    """Return a lane with buffers of its own."""
    return PinnedLane(CPU, HostEvent)


@pytest.mark.parametrize("make", [HostLane, pinned])
def test_arrays_arrive(make: type[Lane]) -> None:
    """What is sent arrives in its dtype and shape, empty, strided and odd ones too, send after send."""
    lane = make()
    for _ in range(3):
        lane.begin()
        for _ in range(2):
            for array, there in zip(ARRAYS, lane.send(*ARRAYS), strict=True):
                np.testing.assert_array_equal(there.numpy(), array)
                assert str(there.dtype).removeprefix("torch.") == str(array.dtype)


def test_arrays_are_aligned() -> None:
    """Every array begins at a multiple of 16 bytes, whatever is before it: Triton compiles anew for others."""
    lane = pinned()
    lane.begin()
    sent = [one for count in (1, 3, 5) for one in lane.send(*(np.zeros(count, dtype=np.int32) for _ in range(4)))]
    assert [one.data_ptr() % 16 for one in sent] == [0] * len(sent)


def test_growing_leaves_what_was_sent() -> None:
    """Arrays beyond the buffer's size arrive, and those sent before them in the step stay as they were."""
    lane = pinned()
    for size in (10, 100_000, 1_000_000):
        lane.begin()
        first, numbers = lane.send(ARRAYS[0], np.arange(size))
        (second,) = lane.send(-np.arange(size))
        assert first.tolist() == ARRAYS[0].tolist()
        assert torch.equal(numbers, torch.arange(size))
        assert torch.equal(second, -torch.arange(size))


@pytest.mark.parametrize("make", [HostLane, pinned])
def test_result_comes_back(make: type[Lane]) -> None:
    """Tokens, and tokens with log-probabilities, come back by the wait, in a time above zero; none are none."""
    lane = make()
    for values in ([7, 8, 1 << 40], [3.0, -0.125], [], list(range(20_000))):
        lane.begin()
        lane.send(*ARRAYS)
        lane.fetch(torch.tensor(values, dtype=torch.float64 if -0.125 in values else torch.int64))
        lane.end()
        found, seconds = lane.wait()
        assert found == values
        assert seconds > 0


@pytest.mark.parametrize("make", [HostLane, pinned])
def test_parts_are_timed(make: type[Lane]) -> None:
    """Times of one part add up, what was measured elsewhere with them; a step begins with none."""
    lane = make()
    for _ in range(2):
        lane.begin()
        for _ in range(3):
            with lane.timed(STORES):
                torch.arange(100_000).sum()
        lane.note(LOADS, 2.0)
        with lane.timed(LOADS):
            torch.arange(1000).sum()
        lane.note(LOADS, 1.0)
        lane.end()
        lane.wait()
        assert 0 < lane.seconds_of(STORES) < 60
        assert 3.0 < lane.seconds_of(LOADS) < 60
        assert lane.seconds_of(WAITS) == 0


def test_buffer_waits_for_its_copies() -> None:
    """A step writes a lane's buffer only when the one before in that lane is over, and waits nowhere else."""
    log: list[str] = []
    names = iter(("began", "ended"))
    lane = PinnedLane(CPU, lambda: LoggingEvent(log, next(names)))
    for _ in range(2):
        lane.begin()
        lane.send(*ARRAYS)
        lane.fetch(torch.arange(3))
        lane.end()
    assert log == ["wait ended", "record began", "record ended"] * 2
    lane.wait()
    assert log[6:] == ["wait ended"]


def test_steps_in_flight_are_counted() -> None:
    """Two steps may be in flight, each in a lane of its own; a third before the first was waited for is refused."""
    lanes = Lanes(pinned)
    flying = []
    for number in range(IN_FLIGHT):
        lane = lanes.take()
        lane.begin()
        lane.fetch(torch.tensor([number]))
        lane.end()
        flying.append(lane)
    with pytest.raises(CoreError, match="2 before it"):
        lanes.take()
    assert [lane.wait()[0] for lane in flying] == [[0], [1]]
    assert lanes.take() is flying[0]
