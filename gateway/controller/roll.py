"""The roll of workers in Postgres: who is connected stays on it, and who has been away for long is struck off."""

import asyncio
import time
from collections.abc import Set as AbstractSet
from functools import partial

import structlog
from django.db import Error

from gateway.controller.threads import DatabaseThreads
from gateway.controller.truth import read_workers
from tenants.services.workers import forget_stale, seen

SEEN_SECONDS = 15.0  # a worker that is connected but silent on HTTP for so long is kept alive by its stream
FORGET_SECONDS = 120.0  # a worker that is away keeps its grants for so long: it may still be serving, cut off from here
SETTLE_SECONDS = 30.0  # a new leader forgets nobody before workers have had the time to come back
TIDY_SECONDS = 5.0

log = structlog.get_logger("controller")


async def keep(threads: DatabaseThreads, connected: AbstractSet[str]) -> None:
    """Keep the roll until cancelled; `connected` are the workers whose streams are open, at any time."""
    started_at = time.monotonic()
    while True:
        await asyncio.sleep(TIDY_SECONDS)
        try:
            known = await threads.call(read_workers)
            silent = [worker for worker in connected & known.keys() if known[worker].silent_seconds > SEEN_SECONDS]
            if silent:
                await threads.call(seen, worker_ids=silent)
            if time.monotonic() - started_at > SETTLE_SECONDS:
                away = partial(forget_stale, older_than_seconds=FORGET_SECONDS, connected=frozenset(connected))
                for worker in await threads.call(away):
                    log.warning("worker_forgotten", worker=worker)
        except Error as error:
            log.warning("tidy_failed", reason=str(error).strip())
