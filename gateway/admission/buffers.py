"""Bytes of request bodies that one process holds, from before their first byte until their request is admitted.

A tenant may hold a quarter of what the others leave: a quarter of all while it is alone, less while others hold much,
and never so much that nothing is left for one who comes. A body whose length is declared is counted whole before it is
read, so that what has begun can end; one whose length isn't is counted as it grows.
"""

from collections import Counter

from gateway.api.errors import Overloaded, RateLimited

LEAST_BYTES = 4096  # of a body, however small: its request has other parts
STEP_BYTES = 65536  # by which a body of no declared length is counted
_PARTS = 4


class Buffers:
    """Owned by the process.

    Args:
        most: bytes that all bodies may have together.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: Counter[str] = Counter()
        self._total = 0

    @property
    def num_bytes(self) -> int:
        """Bytes that are held."""
        return self._total

    @property
    def num_holders(self) -> int:
        """Tenants that hold any."""
        return len(self._held)

    def hold(self, holder: str) -> "Hold":
        """Return the room of one body, of no bytes yet. `holder`: whose share it is taken from, such as a tenant's."""
        return Hold(self, holder)

    def take(self, holder: str, num_bytes: int) -> None:
        """Count bytes.

        Raises:
            RateLimited: the holder's other bodies leave no room in its share.
            Overloaded: those of all others don't.
        """
        held = self._held[holder]  # a Counter keeps nothing for who has none
        share = (self._most - (self._total - held)) // _PARTS
        if held + num_bytes > share:
            raise self._refusal(is_holders=held > 0 and num_bytes <= share)
        self._held[holder] = held + num_bytes
        self._total += num_bytes

    def give(self, holder: str, num_bytes: int) -> None:
        """Take bytes out of the count again."""
        self._total -= num_bytes
        self._held[holder] -= num_bytes
        if not self._held[holder]:
            del self._held[holder]

    def _refusal(self, *, is_holders: bool) -> RateLimited | Overloaded:
        if not is_holders:
            return Overloaded("The bodies of other requests take all the room that there is. Try again in a moment.")
        error = RateLimited(
            "The bodies of your other requests take all your room: send fewer or smaller ones at once, and each faster",
            wait_seconds=1.0,
        )
        error.error_code = "too_many_bodies"
        return error


class Hold:
    """The room of one body. Close it when the body is gone, or its request is bounded by other limits."""

    def __init__(self, buffers: Buffers, holder: str) -> None:
        self._buffers = buffers
        self._holder = holder
        self._num_bytes = 0
        self._closed = False

    def cover(self, num_bytes: int) -> None:
        """See to it that so many bytes are counted. Raises as `Buffers.take`; then no more is counted than before."""
        assert not self._closed
        wanted = max(num_bytes, LEAST_BYTES)
        if wanted > self._num_bytes:
            self._buffers.take(self._holder, wanted - self._num_bytes)
            self._num_bytes = wanted

    def close(self) -> None:
        """Give everything back; a second time nothing happens."""
        self._closed = True
        if self._num_bytes:
            self._buffers.give(self._holder, self._num_bytes)
            self._num_bytes = 0
