"""What API callers ask of sessions, off the event loop: a few threads, and of each tenant a few calls at once."""

from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

from gateway.reads import Reads

Result = TypeVar("Result")

NUM_THREADS = 4
SECONDS = 20.0  # an erasure asks the workers, and Postgres before and after
MOST_AT_ONCE = 2  # calls of one tenant; nobody holds all threads


class DeskBusy(Exception):
    """So many calls of the tenant's are being answered."""


class SessionDesk:
    """Runs calls about sessions; owned by one web process."""

    def __init__(self) -> None:
        self._threads = Reads(NUM_THREADS, SECONDS)
        self._running: Counter[str] = Counter()

    async def run(self, tenant_id: str, call: Callable[..., Result], *args: Any, **kwargs: Any) -> Result:
        """Return what `call` returns.

        Raises:
            DeskBusy: MOST_AT_ONCE calls of the tenant are being answered.
            StoreAway: Postgres is away, or there was no answer in time.
        """
        if self._running[tenant_id] >= MOST_AT_ONCE:
            raise DeskBusy
        self._running[tenant_id] += 1
        try:
            return await self._threads.run(call, *args, **kwargs)
        finally:
            self._running[tenant_id] -= 1
            if not self._running[tenant_id]:
                del self._running[tenant_id]

    def close(self) -> None:
        """Take no more calls."""
        self._threads.close()
