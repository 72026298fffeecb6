"""How fast a tenant may fill the store through one web process. Pure: time comes in as a number.

What is kept is bounded by `tenants.services.responses`, which sweeps now and then; this bounds what comes between.
"""

from gateway.admission.limits import Bucket, wait_seconds

BYTES_A_MINUTE = 256 << 20  # of one tenant, as they are before they are compressed


class Room:
    """Bytes that each tenant may still store. `bytes_a_minute` flow in, and so many may come at once."""

    def __init__(self, bytes_a_minute: int = BYTES_A_MINUTE) -> None:
        self._limit = bytes_a_minute
        self._buckets: dict[str, Bucket] = {}  # of those who have stored something of late

    def wait(self, tenant_id: str, now: float) -> float:
        """Return how many seconds a tenant has to wait until it may store more. `now` is monotonic."""
        bucket = self._buckets.get(tenant_id)
        if bucket is None:
            return 0.0
        bucket.refill(now)
        if bucket.amount == bucket.capacity:
            del self._buckets[tenant_id]
        return wait_seconds(0.0, bucket.amount, self._limit)

    def take(self, tenant_id: str, num_bytes: int, now: float) -> None:
        """Charge what has been stored; how much it would be was not known before."""
        bucket = self._buckets.setdefault(tenant_id, Bucket(self._limit, self._limit, now))
        bucket.refill(now)
        bucket.amount -= num_bytes
