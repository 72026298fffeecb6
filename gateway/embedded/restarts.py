"""Decide when to start a program again that supervisord has given up. Pure: the clock is an argument."""

from collections.abc import Sequence

FIRST_PAUSE_SECONDS = 2.0
LONGEST_PAUSE_SECONDS = 60.0


class Restarts:
    """Per program, a pause that doubles with every failure; a long good run resets it."""

    def __init__(self) -> None:
        self._pause: dict[str, float] = {}
        self._due_at: dict[str, float] = {}
        self._started_at: dict[str, float] = {}

    def due(self, given_up: Sequence[str], now: float) -> list[str]:
        """Return the programs among `given_up` to start now; `now` in monotonic seconds."""
        return [name for name in dict.fromkeys(given_up) if self._is_due(name, now)]

    def _is_due(self, name: str, now: float) -> bool:
        if name not in self._due_at:
            last = self._started_at.get(name)
            calm = last is None or now - last > 2 * LONGEST_PAUSE_SECONDS
            pause = FIRST_PAUSE_SECONDS if calm else min(2 * self._pause[name], LONGEST_PAUSE_SECONDS)
            self._pause[name] = pause
            self._due_at[name] = now + pause
        if now < self._due_at[name]:
            return False
        del self._due_at[name]
        self._started_at[name] = now
        return True
