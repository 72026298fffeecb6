"""Lines of tenants before work that is done one piece after the other: whoever has had least of it is served next.

Start-time fair queueing (Goyal, Vin, Cheng 1996), with what a piece took charged when it is known. Of two tenants that
both wait, neither is ever ahead by more than what the largest piece of each took. A tenant that comes, and has had no
more than others, has nobody served twice before it.
"""

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")

LEAST_SECONDS = 0.001  # to charge for a piece: a coarse clock may not see it, and to hand it over takes something, too


class FairLines(Generic[T]):
    """Work that waits, by tenant. Take a piece, do it, charge it, take the next one."""

    def __init__(self) -> None:
        self._lines: dict[str, deque[T]] = {}  # none is empty
        self._seconds: dict[str, float] = {}  # what each has had; of who waits, and of who has had more than the least
        self._turns: dict[str, int] = {}  # when each of them was served last; among equals who waits longest goes first
        self._least = 0.0  # what the one had that was served last, when it was: who comes begins there
        self._num_taken = 0

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def put(self, tenant: str, piece: T) -> None:
        """Let a piece wait behind the tenant's others."""
        if tenant not in self._lines:
            self._lines[tenant] = deque()
            self._seconds[tenant] = max(self._least, self._seconds.get(tenant, 0.0))
        self._lines[tenant].append(piece)

    def take(self) -> tuple[str, T] | None:
        """Return the next piece and whose it is; None: nothing waits, and what was owed is forgotten."""
        if not self._lines:
            self._seconds.clear()
            self._turns.clear()
            self._least = 0.0
            return None
        tenant = min(self._lines, key=lambda one: (self._seconds[one], self._turns.get(one, 0)))
        line = self._lines[tenant]
        piece = line.popleft()
        if not line:
            del self._lines[tenant]
        self._num_taken += 1
        self._turns[tenant] = self._num_taken
        self._least = self._seconds[tenant]
        return tenant, piece

    def charge(self, tenant: str, seconds: float) -> None:
        """Count what a piece of work took; call it before the next one is taken."""
        self._seconds[tenant] = max(self._least, self._seconds.get(tenant, 0.0)) + seconds
        for one in [one for one, had in self._seconds.items() if had <= self._least and one not in self._lines]:
            del self._seconds[one]
            self._turns.pop(one, None)
