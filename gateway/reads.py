"""Selectors off the event loop: a few threads with connections of their own; no stalled query stalls a stream."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from django.db import DatabaseError, InterfaceError, close_old_connections, connections

Result = TypeVar("Result")

NUM_THREADS = 2
DEADLINE_SECONDS = 5.0  # of what asks Postgres alone


class StoreAway(Exception):
    """Postgres can't be asked just now."""


class Reads:
    """Runs selectors, and what asks workers too; owned by one web process.

    Args:
        num_threads: each with a connection of its own.
        seconds: that a caller waits.
    """

    def __init__(self, num_threads: int = NUM_THREADS, seconds: float = DEADLINE_SECONDS) -> None:
        self._num_threads = num_threads
        self._seconds = seconds
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="reads")

    async def run(self, selector: Callable[..., Result], *args: Any, **kwargs: Any) -> Result:
        """Return what `selector` returns.

        Raises:
            StoreAway: Postgres is away, or there was no answer in time.
        """
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(self._threads, partial(_read, partial(selector, *args, **kwargs)))
        try:
            async with asyncio.timeout(self._seconds):
                return await work
        except (DatabaseError, InterfaceError, TimeoutError) as error:
            raise StoreAway(f"{type(error).__name__}: {error}") from error

    def close(self) -> None:
        """Close the threads' connections and end them; does not wait for a stalled query."""
        for _ in range(self._num_threads):
            self._threads.submit(connections.close_all)
        self._threads.shutdown(wait=False, cancel_futures=False)


def _read(selector: Callable[[], Result]) -> Result:
    close_old_connections()
    try:
        return selector()
    except (DatabaseError, InterfaceError):
        connections.close_all()  # a broken connection must not meet the next reader
        raise
