"""When a failing disk is left alone, and when it is tried again. Pure: the clock is the caller's.

Each failure weighs as much as four successes: once more than a fifth of what is tried goes wrong for a while, at least
four times, the breaker trips. One bad sector among good ones does not. A disk that fails again soon after its recovery
is left alone for twice as long.
"""

_WEIGHT = 4
_LIMIT = 4 * _WEIGHT
_MOST_SECONDS = 60.0
_WELL_SECONDS = 60.0  # so long without trouble, and it is forgotten


class Breaker:
    """Counts failures, and waits."""

    def __init__(self, first_seconds: float) -> None:
        """Begin well; the first while lasts so long."""
        self._level = 0
        self._first = self._wait = first_seconds
        self._retry_at = 0.0
        self._recovered_at = 0.0

    def succeeded(self) -> None:
        """Note that the disk did what it should."""
        self._level = max(0, self._level - 1)

    def failed(self) -> bool:
        """Note that it did not; return whether it is to be left alone."""
        self._level += _WEIGHT
        return self._level >= _LIMIT

    def trip(self, now: float) -> None:
        """Leave the disk alone for a while."""
        if self._recovered_at and now - self._recovered_at > _WELL_SECONDS:
            self._wait = self._first
        self._level, self._recovered_at = 0, 0.0
        self._retry_at = now + self._wait
        self._wait = min(_MOST_SECONDS, 2 * self._wait)

    def may_retry(self, now: float) -> bool:
        """Whether the while is over."""
        return now >= self._retry_at

    def recovered(self, now: float) -> None:
        """Note that the store is open again."""
        self._recovered_at = now
