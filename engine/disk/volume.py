"""The threads of an open store: one keeper, a few that write slabs for it, a few that read.

A volume is one life of a store: from opening the folder to the first trouble that it does not get over, or to the end.
It is then abandoned with whatever its threads are stuck in, and another one may begin when they have ended.
"""

import logging
import queue
import sqlite3
import threading
from collections.abc import Sequence
from typing import TypeVar

from engine.disk.extents import Buffer, TornSlab, stride_of
from engine.disk.files import Files
from engine.disk.keeper import Keeper, kind_of
from engine.disk.opening import OpenFolder, Place
from engine.disk.orders import Answer, Fetch, Fetched, Order, Put, Stop, Wipe

NUM_READERS = 4
NUM_WRITERS = 4

Job = TypeVar("Job")

log = logging.getLogger("engine.disk")


class Volume:
    """Started when made; `answers` begin with Opened or Failed."""

    def __init__(self, place: Place, files: Files) -> None:
        """Start the threads."""
        self._place, self._files = place, files
        self.answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._orders: queue.SimpleQueue[Order] = queue.SimpleQueue()
        self._fetches: queue.SimpleQueue[Fetch | None] = queue.SimpleQueue()
        self._jobs: queue.SimpleQueue[Put | Wipe | None] = queue.SimpleQueue()
        self._written: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._folder: OpenFolder | None = None  # set before any reader or writer has work
        self._stride = stride_of(place.layout.slot_bytes)
        self._zeros = Buffer(self._stride)
        self._keeper = Keeper(self._open, self._orders, self.answers.put, self._write, self._wait_written)
        self._workers = [
            *(threading.Thread(target=self._read_all, name=f"disk-read-{n}", daemon=True) for n in range(NUM_READERS)),
            *(
                threading.Thread(target=self._write_all, name=f"disk-write-{n}", daemon=True)
                for n in range(NUM_WRITERS)
            ),
        ]
        self._thread = threading.Thread(target=self._run, name="disk-keeper", daemon=True)
        for thread in (*self._workers, self._thread):
            thread.start()

    # ------------------------------------------------------------ from the loop's thread

    @property
    def ended(self) -> bool:
        """Whether all threads have ended and all files are closed."""
        return not self._thread.is_alive()

    def order(self, order: Order) -> None:
        """Queue something for the keeper."""
        self._orders.put(order)

    def fetch(self, fetch: Fetch) -> None:
        """Queue a read."""
        self._fetches.put(fetch)

    def abandon(self) -> None:
        """Have the threads end as soon as they can, leaving what is queued."""
        self._keeper.abandoned.set()
        self._orders.put(Stop([]))

    def join(self, seconds: float) -> bool:
        """Wait for the end, after a stop; return whether it came."""
        self._thread.join(seconds)
        return self.ended

    # ------------------------------------------------------------ the threads

    def _run(self) -> None:
        folder = self._keeper.run()
        for _ in self._workers:
            self._fetches.put(None)
            self._jobs.put(None)
        for worker in self._workers:
            worker.join()
        if folder is not None:
            try:
                folder.close()
            except (OSError, sqlite3.Error) as error:
                log.warning("disk_close_failed", extra={"error": str(error)})

    def _open(self) -> OpenFolder:
        self._folder = OpenFolder(self._place, self._files)
        return self._folder

    def _write(self, jobs: Sequence[Put | Wipe]) -> None:
        for job in jobs:
            self._jobs.put(job)

    def _wait_written(self, count: int) -> None:
        for _ in range(count):
            self._written.get()

    def _write_all(self) -> None:
        buffer = Buffer(self._stride)
        while (job := _next(self._jobs, buffer)) is not None:
            try:
                self._write_one(job, buffer)
            except OSError as error:
                job.error = kind_of(error, "write")
            except Exception:
                log.exception("disk_write_failed")
                job.error = "write"
            self._written.put(None)

    def _write_one(self, job: Put | Wipe, buffer: Buffer) -> None:
        assert self._folder is not None
        if isinstance(job, Wipe):
            self._folder.extents.write(job.slot, self._zeros.slot)
            return
        if not job.claim.take():
            job.error = "cancelled"
            return
        try:
            job.proof = job.sealer.seal(job.key, job.memory, buffer.memory)
        finally:
            job.claim.finished = True
        self._folder.extents.write(job.slot, buffer.slot)

    def _read_all(self) -> None:
        buffer = Buffer(self._stride)
        while (fetch := _next(self._fetches, buffer)) is not None:
            if self._keeper.abandoned.is_set():
                continue
            try:
                error = self._read_one(fetch, buffer)
            except TornSlab:
                error = "torn"
            except OSError:
                error = "read"
            except Exception:
                log.exception("disk_read_failed")
                error = "read"
            self.answers.put(Fetched(fetch, error))

    def _read_one(self, fetch: Fetch, buffer: Buffer) -> str:
        assert self._folder is not None
        self._folder.extents.read(fetch.slot, buffer.slot)
        if not fetch.claim.take():
            return "cancelled"
        try:
            return "" if fetch.sealer.open(fetch.key, fetch.proof, buffer.memory, fetch.into) else "torn"
        finally:
            fetch.claim.finished = True


def _next(jobs: "queue.SimpleQueue[Job]", buffer: Buffer) -> Job:
    """Return the next job; while a thread waits for one, its buffer holds nothing that may be erased meanwhile."""
    try:
        return jobs.get_nowait()
    except queue.Empty:
        buffer.clear()
        return jobs.get()
