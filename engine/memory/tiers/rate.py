"""How fast blocks are copied one way."""

from math import inf

START_RATE = 2e9  # bytes a second, until something was copied: any machine that serves models is faster
_START_SECONDS = 0.001  # how much that guess weighs: soon nothing
_FORGET = 0.9  # of one copy


class CopyRate:
    """How fast blocks are copied one way: bytes over seconds of the last copies, so that large ones count for more."""

    __slots__ = ("_bytes", "_seconds")

    def __init__(self, start: float = START_RATE) -> None:
        """Start with a guess, in bytes a second."""
        self._bytes, self._seconds = start * _START_SECONDS, _START_SECONDS

    @property
    def bytes_per_second(self) -> float:
        """The rate."""
        return self._bytes / self._seconds

    def predict(self, num_bytes: int) -> float:
        """Return the seconds that a copy takes."""
        return num_bytes * self._seconds / self._bytes

    def observe(self, num_bytes: int, seconds: float) -> None:
        """Take in a copy. A time that is not positive is ignored: the clock was set back."""
        if num_bytes > 0 and 0.0 < seconds < inf:
            self._bytes = self._bytes * _FORGET + num_bytes
            self._seconds = self._seconds * _FORGET + seconds
