"""Stored responses as one web process reaches them, off the event loop; and those that it generates by itself."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from gateway.api.errors import Overloaded, RateLimited
from gateway.api.responses.room import Room
from gateway.reads import Reads, StoreAway
from tenants import responses as reads
from tenants.contracts import ResponseOwner, ResponseRecord
from tenants.services import responses as services

NUM_THREADS = 4
SECONDS = 5.0  # of one call, its turn included
MOST_AT_ONCE = 2  # calls of one tenant that are with Postgres; nobody holds all threads
MOST_WAITING = 64  # and that wait for those
MOST_RUNNING, MOST_OF_A_TENANT = 512, 128  # in the background of this process

Result = TypeVar("Result")


class Background(Protocol):
    """A response that is generated here without its client."""

    owner: ResponseOwner

    def stop(self) -> None:
        """End it: it was cancelled or deleted."""
        ...


class ResponseDesk:
    """Owned by one web process."""

    def __init__(self) -> None:
        self._threads = Reads(NUM_THREADS, SECONDS)
        self._turns: dict[str, asyncio.Semaphore] = {}
        self._waiting: Counter[str] = Counter()
        self._running: dict[str, Background] = {}
        self._room = Room()

    # ---------------------------------------------------------------- Postgres

    async def find(self, owner: ResponseOwner, response_id: str) -> ResponseRecord | None:
        """Return a response, None where the owner has none of this id. Raises as `run`."""
        return await self.run(owner, reads.response, owner, response_id)

    async def find_all(self, owner: ResponseOwner, ids: Sequence[str]) -> list[ResponseRecord]:
        """Return those of the responses that are there. Raises as `run`."""
        return await self.run(owner, reads.responses, owner, ids)

    async def run(self, owner: ResponseOwner, call: Callable[..., Result], /, *args: Any, **kwargs: Any) -> Result:
        """Return what a read or a service of the domain returns.

        Raises:
            RateLimited: so many calls of the tenant's wait already.
            Overloaded: Postgres is away, or there was no answer in time.
        """
        if self._waiting[owner.tenant_id] >= MOST_WAITING:
            raise RateLimited("Your other calls about responses are still being answered.", wait_seconds=0.5)
        try:
            return await self._in_turn(owner.tenant_id, call, *args, **kwargs)
        except StoreAway as error:
            raise Overloaded("Stored responses can't be reached just now. Try again in a moment.") from error

    def check_room(self, owner: ResponseOwner) -> None:
        """Raise RateLimited where a tenant has stored more of late than it may."""
        if (wait := self._room.wait(owner.tenant_id, time.monotonic())) > 0:
            raise RateLimited(
                "Your responses fill the store faster than they may: wait, or set `store` to false.", wait_seconds=wait
            )

    async def keep(self, owner: ResponseOwner, response: ResponseRecord) -> None:
        """Store a new response, whatever else waits. Raises StoreAway."""
        await self._in_turn(owner.tenant_id, services.keep, owner=owner, response=response)
        self._room.take(owner.tenant_id, len(response.document), time.monotonic())

    async def go_on(self, owner: ResponseOwner, response: ResponseRecord) -> bool:
        """Write how far a response in the background has come. False: it is to stop. Raises StoreAway."""
        return await self._in_turn(owner.tenant_id, services.go_on, owner=owner, response=response)

    async def read(self, owner: ResponseOwner, response_id: str) -> ResponseRecord | None:
        """Return a response as `find` does, whatever else waits. Raises StoreAway."""
        return await self._in_turn(owner.tenant_id, reads.response, owner, response_id)

    async def _in_turn(self, tenant_id: str, call: Callable[..., Result], /, *args: Any, **kwargs: Any) -> Result:
        turns = self._turns.setdefault(tenant_id, asyncio.Semaphore(MOST_AT_ONCE))
        self._waiting[tenant_id] += 1
        try:
            async with asyncio.timeout(SECONDS), turns:
                return await self._threads.run(call, *args, **kwargs)
        except TimeoutError as error:
            raise StoreAway("too many calls of the tenant's wait for Postgres") from error
        finally:
            self._waiting[tenant_id] -= 1
            if not self._waiting[tenant_id]:
                del self._waiting[tenant_id], self._turns[tenant_id]

    # ---------------------------------------------------------------- in the background

    def enter(self, response_id: str, background: Background) -> None:
        """Take note of a response that begins.

        Raises:
            RateLimited: as many run as may.
        """
        tenant_id = background.owner.tenant_id
        of_tenant = sum(one.owner.tenant_id == tenant_id for one in self._running.values())
        if len(self._running) >= MOST_RUNNING or of_tenant >= MOST_OF_A_TENANT:
            raise RateLimited("As many responses run in the background as may: wait for one.", wait_seconds=1.0)
        self._running[response_id] = background

    def leave(self, response_id: str) -> None:
        """Forget it: it has ended."""
        self._running.pop(response_id, None)

    def running(self, owner: ResponseOwner, response_id: str) -> Background | None:
        """Return a response of the owner's that runs here."""
        found = self._running.get(response_id)
        return found if found is not None and found.owner == owner else None

    async def stopped(self, response_id: str) -> None:
        """Take a notification of `tollgate_responses`."""
        if (found := self._running.get(response_id)) is not None:
            found.stop()

    def close(self) -> None:
        """Take no more calls."""
        self._threads.close()
