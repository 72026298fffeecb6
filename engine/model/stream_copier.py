"""Transfers on a GPU: two streams each way, that take pieces in turn, each with a staging buffer of its own.

    stream 0   gather ▶ copy out ····· gather ▶ copy out
    stream 1          gather ▶ copy out ····· gather ▶ copy out

The buffer is what the gather returns, or the copy in: torch's allocator gives a stream the memory that it has just
given back. The bus works both ways at once, so that each way has a pair of its own.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from engine.errors import CoreError
from engine.model.copier import Copier, touches
from engine.model.lanes import Event
from engine.model.link import Side
from engine.model.slabs import Slabs
from engine.request import BlockId, SlabId
from engine.step import Transfer, TransferDone

_PAIR = 2


@dataclass(frozen=True, slots=True)
class _Flight:
    """A transfer on its way: where it begins and ends on each stream of its pair."""

    transfer: Transfer
    marks: tuple[tuple[Event, Event], ...]

    @property
    def over(self) -> bool:
        return all(ended.query() for _, ended in self.marks)

    @property
    def seconds(self) -> float:
        return max(began.elapsed_time(ended) for began, ended in self.marks) / 1e3


class StreamCopier(Copier):
    """By streams beside the one that computes; the host only launches."""

    def __init__(self, slabs: Slabs, side: Side) -> None:
        self._slabs, self._side = slabs, side
        self._pairs = tuple(tuple(side.stream() for _ in range(_PAIR)) for _ in range(2))  # in, out
        self._flights: list[_Flight] = []
        self._closed = False

    def copy(self, transfer: Transfer) -> None:
        """See `Copier.copy`."""
        if self._closed:
            raise CoreError("a copy was asked for after the runner was closed")
        launched = self._side.event()
        launched.record()
        marks = []
        copy = self._slabs.store if transfer.is_store else self._slabs.load
        most = self._slabs.most
        for number, stream in enumerate(self._pairs[transfer.is_store]):
            began, ended = self._side.event(), self._side.event()
            with stream.entered():
                launched.wait()
                began.record()
                for at in range(number * most, len(transfer.moves), _PAIR * most):
                    copy(transfer.moves[at : at + most], self._side.send)
                ended.record()
            marks.append((began, ended))
        self._flights.append(_Flight(transfer, tuple(marks)))

    def copied(self) -> list[TransferDone]:
        """See `Copier.copied`."""
        over = [flight for flight in self._flights if flight.over]
        self._flights = [flight for flight in self._flights if flight not in over]
        return [TransferDone(flight.transfer.number, flight.seconds) for flight in over]

    def settle(self, *, blocks: Iterable[BlockId] = (), slabs: Iterable[SlabId] = ()) -> None:
        """See `Copier.settle`."""
        blocks, slabs = frozenset(blocks), frozenset(slabs)
        for flight in self._flights:
            if touches(flight.transfer, blocks, slabs):
                for _, ended in flight.marks:
                    ended.synchronize()

    def close(self) -> None:
        """See `Copier.close`. What has been launched cannot be dropped: it is waited for."""
        self._closed = True
        for flight in self._flights:
            for _, ended in flight.marks:
                ended.synchronize()
        self._flights.clear()
