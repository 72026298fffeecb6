"""When conversations go on: a hazard table over the time since a turn has ended, and who is likely to be back soon.

    turn ends ──▶ waits ──▶ next turn begins: a return, in the interval that it came in
                    └──▶ each interval that it lives to see is counted; where a return is likely, it is a candidate

A candidate's blocks are brought up only into room that nobody needs, so that a wrong guess costs a copy and no more.
Each event is some additions and a push to a heap. Counts fade, to a half with each thousand turns.
"""

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

Name = TypeVar("Name", bound=Hashable)

EDGES = (0.0, 15.0, 30.0, 60.0, 90.0, 120.0, 180.0, 240.0, 360.0, 600.0, 1200.0, 3600.0)  # seconds since a turn ended
SOON_SECONDS = 60.0
LEAST_CHANCE = 0.11  # of a return that soon
MOST_WAITING = 1 << 16
MOST_STEPS = 256  # of one call: it lies between two steps of the engine
# Chances of a return in each interval: the first half of the Mooncake conversation trace (6,015 requests; Apache-2.0).
PRIOR = (0.005, 0.015, 0.06, 0.06, 0.05, 0.07, 0.05, 0.06, 0.06, 0.04, 0.03)
_PRIOR_TURNS = 50.0
_HALF_TURNS = 1000
_LATER = 2  # from so many turns on, conversations are of one kind


class _Kind:
    """Conversations of the same number of turns, up to a point."""

    __slots__ = ("num_ended", "returned", "seen")

    def __init__(self) -> None:
        self.seen = [_PRIOR_TURNS] * len(PRIOR)  # that lived to see an interval, or came back in it
        self.returned = [_PRIOR_TURNS * chance for chance in PRIOR]
        self.num_ended = 0

    def chance(self, interval: int) -> float:
        """Return the chance that one which has just come to an interval is back soon."""
        stays, end = 1.0, EDGES[interval] + SOON_SECONDS
        for number in range(interval, len(PRIOR)):
            begin, close = EDGES[number], EDGES[number + 1]
            if begin >= end:
                break
            part = min(1.0, (end - begin) / (close - begin))
            stays *= 1.0 - part * min(1.0, self.returned[number] / self.seen[number])
        return 1.0 - stays

    def count_turn(self) -> None:
        """Count the end of a turn, and let what was learned fade."""
        self.num_ended += 1
        if self.num_ended % _HALF_TURNS == 0:
            self.seen = [count / 2 for count in self.seen]
            self.returned = [count / 2 for count in self.returned]


class Returns(Generic[Name]):
    """Conversations that wait for their next turn, by name. Times are seconds on any one clock."""

    def __init__(self) -> None:
        self._kinds = [_Kind() for _ in range(_LATER + 1)]
        self._waiting: dict[Name, tuple[float, int, int]] = {}  # when its turn ended, of which kind it is, its number
        self._steps: list[tuple[float, int, int, Name]] = []  # a heap: when it comes to an interval, its number, which
        self._number = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def ended(self, name: Name, num_turns: int, now: float) -> None:
        """Note that a conversation waits for its next turn after so many."""
        if name not in self._waiting and len(self._waiting) >= MOST_WAITING:
            return
        kind = min(max(num_turns - 1, 0), _LATER)
        self._kinds[kind].count_turn()
        self._number += 1
        self._waiting[name] = (now, kind, self._number)
        heapq.heappush(self._steps, (now + EDGES[1], self._number, 1, name))
        if len(self._steps) > 64 + 2 * len(self._waiting):
            self._steps = [step for step in self._steps if self._is_current(step)]
            heapq.heapify(self._steps)

    def began(self, name: Name, now: float) -> None:
        """Note that a conversation goes on, if it waited."""
        waiting = self._waiting.pop(name, None)
        if waiting is None:
            return
        at, kind, _ = waiting
        age, table = now - at, self._kinds[kind]
        for number in range(len(PRIOR)):
            if age < EDGES[number + 1]:
                table.seen[number] += 1
                table.returned[number] += 1
                return

    def forget(self, name: Name) -> None:
        """Let a conversation that is no more go: nothing is learned of it."""
        self._waiting.pop(name, None)

    def candidates(self, now: float, limit: int) -> list[Name]:
        """Return conversations that are likely to be back soon, those that came to be so since the last call.

        At most `limit`; the others follow in the next call. Each is named once for each interval in which it is likely.
        """
        found: list[Name] = []
        for _ in range(MOST_STEPS):
            if not self._steps or self._steps[0][0] > now or len(found) >= limit:
                break
            step = heapq.heappop(self._steps)
            if self._is_current(step) and self._step(step, now):
                found.append(step[3])
        return found

    def _step(self, step: tuple[float, int, int, Name], now: float) -> bool:
        """Have a conversation come to an interval; say whether it is likely to be back soon."""
        _, number, interval, name = step
        at, kind, _ = self._waiting[name]
        table = self._kinds[kind]
        table.seen[interval - 1] += 1
        if interval == len(PRIOR):  # hardly ever after that
            del self._waiting[name]
            return False
        heapq.heappush(self._steps, (at + EDGES[interval + 1], number, interval + 1, name))
        return now < at + EDGES[interval + 1] and table.chance(interval) >= LEAST_CHANCE

    def _is_current(self, step: tuple[float, int, int, Name]) -> bool:
        waiting = self._waiting.get(step[3])
        return waiting is not None and waiting[2] == step[1]
