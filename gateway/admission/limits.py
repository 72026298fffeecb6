"""Token buckets. Pure: time comes in as a number.

A limit of n a minute is a bucket of n that refills by n/60 a second: a quiet caller may burst to n at once.
"""

from dataclasses import dataclass

MINUTE = 60.0


@dataclass(slots=True)
class Bucket:
    """A local bucket of `capacity` a minute, holding `amount` as of `at` (seconds); it may be in debt."""

    capacity: float
    amount: float
    at: float

    def refill(self, now: float) -> None:
        """Add what has flowed in since the last call."""
        grown = self.amount + max(0.0, now - self.at) * self.capacity / MINUTE
        self.amount = min(self.capacity, grown)
        self.at = now

    def take(self, wanted: float, now: float) -> bool:
        """Take `wanted` if it is there."""
        self.refill(now)
        if self.amount < wanted:
            return False
        self.amount -= wanted
        return True


def wait_seconds(wanted: float, available: float, limit: float) -> float:
    """Return how long until `wanted` can be taken from a bucket of `limit` a minute that holds `available`."""
    return max(0.0, wanted - available) * MINUTE / limit


def slice_size(wanted: float, limit: float, processes: int) -> float:
    """Return how much to lease: what is wanted now and about a second's worth, at most a quarter of an even share.

    Small limits are leased one by one, so that no process sits on what another could use.
    """
    ahead = min(limit / MINUTE, limit / (4 * max(1, processes)))
    return max(wanted, float(int(ahead)))


def duration(seconds: float) -> str:
    """Return a duration as OpenAI's headers write it: `12ms`, `1.5s`, `6m0s`."""
    if seconds < 1:
        return f"{max(0, round(seconds * 1000))}ms"
    minutes, rest = divmod(seconds, 60)
    text = f"{rest:.3f}".rstrip("0").rstrip(".")
    return f"{int(minutes)}m{text}s" if minutes else f"{text}s"
