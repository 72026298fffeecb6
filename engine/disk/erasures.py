"""What was to be erased and may still be on the disk: each call's ticket, and what it waits for."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from engine.memory.eviction.base import BlockKey

Wait = tuple[str, int]  # ("slot", to be overwritten) or ("change", of the index, to be on the disk)


@dataclass(slots=True, eq=False)
class Erasure:
    """One call."""

    ticket: int
    keys: frozenset[BlockKey] = frozenset()
    owner: str | None = None  # all of it
    session: tuple[str, str] | None = None  # owner and session
    waits: set[Wait] = field(default_factory=set)


class Erasures:
    """All that are not over."""

    def __init__(self) -> None:
        self._all: dict[int, Erasure] = {}
        self._waiting: dict[Wait, list[Erasure]] = {}
        self._ended: list[int] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._all) + len(self._ended)

    def begin(
        self,
        *,
        keys: Iterable[BlockKey] = (),
        owner: str | None = None,
        session: tuple[str, str] | None = None,
    ) -> Erasure:
        """Return a new one; it is over when `wait` has been called and all that is over."""
        self._count += 1
        erasure = self._all[self._count] = Erasure(self._count, frozenset(keys), owner, session)
        return erasure

    def wait(self, erasure: Erasure, waits: Iterable[Wait]) -> None:
        """Say what has to be over before it is."""
        erasure.waits = set(waits)
        for wait in erasure.waits:
            self._waiting.setdefault(wait, []).append(erasure)
        self._end_if_done(erasure)

    def over(self, wait: Wait) -> None:
        """Note that a slot is overwritten, or a change is on the disk."""
        for erasure in self._waiting.pop(wait, ()):
            erasure.waits.discard(wait)
            self._end_if_done(erasure)

    def owed(self) -> list[Erasure]:
        """Return those that are not over, waiting for nothing any more: their store has another life."""
        self._waiting.clear()
        for erasure in self._all.values():
            erasure.waits = set()
        return list(self._all.values())

    def take_ended(self) -> list[int]:
        """Return the tickets of those that ended since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def _end_if_done(self, erasure: Erasure) -> None:
        if not erasure.waits and self._all.pop(erasure.ticket, None) is not None:
            self._ended.append(erasure.ticket)
