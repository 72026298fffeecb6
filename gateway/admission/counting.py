"""Calls that count tokens and generate nothing: `/tokenize`, `/detokenize`, `/v1/responses/input_tokens`.

They cost the processor of the web process alone. Each takes a request of buckets of their own (see `Admission`), before
its body is read; a tenant has MOST_CALLS of them at once, and MOST_LARGE that work at a large text.
"""

import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from gateway.admission.admit import Admission, Permit
from gateway.api.errors import RateLimited
from tenants.contracts import KeyGrant

MOST_CALLS = 64
LARGE = 16_000  # characters or tokens: what takes longer than a request's other work
MOST_LARGE = 4


class Counting:
    """Owned by the web process.

    Args:
        admission: of the process.
    """

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._calls: Counter[str] = Counter()
        self._large: Counter[str] = Counter()

    @asynccontextmanager
    async def call(self, grant: KeyGrant) -> AsyncIterator[Permit]:
        """Count a call while it is served. Raises RateLimited where a limit is used up."""
        refusal = f"{MOST_CALLS} calls of yours that count tokens are being served, which is the limit."
        with _counted(self._calls, grant.tenant_id, MOST_CALLS, refusal):
            yield await self._admission.admit_call(grant, now=time.monotonic(), apart=True)

    @contextmanager
    def turn(self, tenant_id: str, size: int) -> Iterator[None]:
        """Count a large text while it is worked at. Raises RateLimited where the tenant has MOST_LARGE already.

        Args:
            tenant_id: whose it is.
            size: characters or tokens.
        """
        if size <= LARGE:
            yield
            return
        with _counted(self._large, tenant_id, MOST_LARGE, "Your other large texts are still being worked at."):
            yield


@contextmanager
def _counted(counts: Counter[str], tenant_id: str, most: int, refusal: str) -> Iterator[None]:
    if counts[tenant_id] >= most:
        raise RateLimited(refusal, wait_seconds=0.5)
    counts[tenant_id] += 1
    try:
        yield
    finally:
        counts[tenant_id] -= 1
        if not counts[tenant_id]:
            del counts[tenant_id]
