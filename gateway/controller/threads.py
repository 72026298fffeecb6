"""Django's ORM kept off the event loop: a few threads, each with its own database connection."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

import structlog
from django.db import close_old_connections, connections

CLOSE_SECONDS = 5.0  # how long a call that still runs may take when the process ends

log = structlog.get_logger("controller")

P = ParamSpec("P")
R = TypeVar("R")


class DatabaseThreads:
    """Runs blocking domain functions. A connection that broke is replaced before the next call.

    Args:
        size: threads, and so database connections, at most.
    """

    def __init__(self, size: int = 4) -> None:
        self._pool = ThreadPoolExecutor(size, thread_name_prefix="database")
        self._size = size

    async def call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run `function` in a thread and return what it returns or raise what it raises."""
        bound = partial(function, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._pool, _run, bound)

    def close(self) -> None:
        """Let running calls end and close every thread's connection; the object is of no use afterwards."""
        together = threading.Barrier(self._size)  # so that each thread gets one of the tasks
        for _ in range(self._size):
            self._pool.submit(_close, together)
        self._pool.shutdown(wait=True)


def _close(together: threading.Barrier) -> None:
    try:
        together.wait(CLOSE_SECONDS)
    except threading.BrokenBarrierError:
        log.warning("database_threads_busy", seconds=CLOSE_SECONDS)
    connections.close_all()


def _run(bound: Callable[[], R]) -> R:
    close_old_connections()
    try:
        return bound()
    finally:
        close_old_connections()
