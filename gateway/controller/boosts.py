"""Ends boosts when their time comes. Celery's beat does it should no controller be there; who is second finds none."""

import asyncio
import contextlib

import structlog
from django.db import Error
from django.utils import timezone

from gateway.controller.threads import DatabaseThreads
from tenants import selectors
from tenants.services.boosts import end_due_boosts

LOOK_SECONDS = 30.0  # at the latest: a clock that was set is noticed, and no boost is shorter
PAUSE_SECONDS = 0.25  # between two looks, however many policies change
RETRY_SECONDS = 1.0  # while Postgres is away

log = structlog.get_logger("controller")


class BoostTimer:
    """Sleeps until the next boost ends. `look` when policies have changed, for one may have begun."""

    def __init__(self, threads: DatabaseThreads) -> None:
        self._threads = threads
        self._wake = asyncio.Event()

    def look(self) -> None:
        """Ask again when the next boost ends."""
        self._wake.set()

    async def run(self) -> None:
        """End boosts until cancelled."""
        while True:
            try:
                seconds = await self._end_due()
            except Error as error:
                log.warning("boosts_wait", reason=str(error).strip())
                await asyncio.sleep(RETRY_SECONDS)
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._wake.wait()
            self._wake.clear()
            await asyncio.sleep(min(PAUSE_SECONDS, seconds))

    async def _end_due(self) -> float:
        """End what is due; return the seconds until there may be more to do."""
        while (ends_at := await self._threads.call(selectors.next_boost_end)) is not None:
            seconds = (ends_at - timezone.now()).total_seconds()
            if seconds > 0:
                return min(seconds, LOOK_SECONDS)
            for boost in await self._threads.call(end_due_boosts):
                log.info("boost_ended", tenant=boost.tenant_slug, boost=boost.id, version=boost.ended_version)
        return LOOK_SECONDS
