"""The usage journal: SQLite in WAL mode with `synchronous=FULL`, written by one thread in group commits.

Callers queue an operation and await its future; the thread takes whatever has gathered, commits it in one transaction
and then resolves all futures at once. While the disk refuses, the thread keeps the group and tries again, so nothing is
lost and nothing is reported before it is stored.
"""

import asyncio
import os
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from engine.errors import EngineError

_SCHEMA = """
CREATE TABLE IF NOT EXISTS usage (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT, request_id TEXT NOT NULL UNIQUE, record BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS state (name TEXT PRIMARY KEY, value BLOB NOT NULL);
"""
_INSERT = "INSERT INTO usage (request_id, record) VALUES (?, ?) ON CONFLICT (request_id) DO NOTHING"
_RETRY_SECONDS = 0.5
_GROUP = 1024  # operations of one transaction at most

log = structlog.get_logger(part="journal")


@dataclass(frozen=True, slots=True)
class Entry:
    """One stored usage record: its sequence in this journal and the serialised `UsageRecord`."""

    sequence: int
    record: bytes


@dataclass(frozen=True, slots=True)
class _Operation:
    run: Callable[[sqlite3.Connection], object]
    done: "asyncio.Future[object]"


class Journal:
    """Usage records until they are acked, and small state such as the last policy. Owned by one process.

    The file is its user's alone, whatever the folder allows: the policy holds secrets.
    """

    def __init__(self, path: Path) -> None:
        """Open or create the file.

        Raises:
            EngineError: the file cannot be opened or is not a journal.
        """
        self._path = path
        self._queue: queue.SimpleQueue[_Operation | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing = threading.Event()
        self.failure = ""  # why commits fail at the moment; empty: they work
        try:
            _make_private(path)
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.executescript(_SCHEMA)
        except (sqlite3.Error, OSError) as error:
            raise EngineError(f"the usage journal {path} cannot be opened: {error}") from error

    def start(self) -> None:
        """Start the thread; futures resolve on the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._work, name="journal", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Commit what is queued, stop the thread and close the file."""
        if self._thread is not None:
            self._closing.set()
            self._queue.put(None)
            self._thread.join()
        self._db.close()

    # ------------------------------------------------------------ before the thread runs

    def append_now(self, records: Iterable[tuple[str, bytes]]) -> None:
        """Store `(request_id, record)` pairs in one transaction; an id that is there already is left as it is."""
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany(_INSERT, records)

    def load(self, name: str) -> bytes | None:
        """Return the state saved under `name`."""
        row = self._db.execute("SELECT value FROM state WHERE name = ?", (name,)).fetchone()
        return None if row is None else bytes(row[0])

    # ------------------------------------------------------------ from the event loop

    def append(self, request_id: str, record: bytes) -> "asyncio.Future[object]":
        """Store one usage record; the future gives False when the journal has that id already."""
        return self._submit(lambda db: db.execute(_INSERT, (request_id, record)).rowcount > 0)

    def save(self, values: Mapping[str, bytes]) -> "asyncio.Future[object]":
        """Replace the states of these names, all of them or none."""
        query = "INSERT OR REPLACE INTO state VALUES (?, ?)"
        return self._submit(lambda db: db.executemany(query, values.items()).rowcount)

    def ack(self, up_to: int) -> "asyncio.Future[object]":
        """Forget every record with a sequence <= `up_to`."""
        return self._submit(lambda db: db.execute("DELETE FROM usage WHERE sequence <= ?", (up_to,)).rowcount)

    async def read(self, after: int, limit: int) -> Sequence[Entry]:
        """Return up to `limit` records with a sequence > `after`, in order."""
        query = "SELECT sequence, record FROM usage WHERE sequence > ? ORDER BY sequence LIMIT ?"
        rows = await self._submit(lambda db: db.execute(query, (after, limit)).fetchall())
        return [Entry(sequence, record) for sequence, record in rows]  # type: ignore[attr-defined]

    def _submit(self, run: Callable[[sqlite3.Connection], object]) -> "asyncio.Future[object]":
        assert self._loop is not None, "start() comes first"
        done: asyncio.Future[object] = self._loop.create_future()
        self._queue.put(_Operation(run, done))
        return done

    # ------------------------------------------------------------ the thread

    def _work(self) -> None:
        running = True
        while running:
            group = self._gather()
            running = group[-1] is not None
            operations = [operation for operation in group if operation is not None]
            if operations:
                self._finish(operations)

    def _gather(self) -> list[_Operation | None]:
        group = [self._queue.get()]
        while group[-1] is not None and len(group) < _GROUP:
            try:
                group.append(self._queue.get_nowait())
            except queue.Empty:
                break
        return group

    def _finish(self, operations: Sequence[_Operation]) -> None:
        results = self._commit(operations)
        while results is None:
            if self._closing.wait(_RETRY_SECONDS):
                results = self._commit(operations)
                break
            results = self._commit(operations)
        if results is None:
            log.error("journal_left_unwritten", operations=len(operations), error=self.failure)
            return
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(_resolve, operations, results)

    def _commit(self, operations: Sequence[_Operation]) -> list[object] | None:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            results = [operation.run(self._db) for operation in operations]
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            if not self.failure:
                log.error("journal_not_writable", path=str(self._path), error=str(error))
            self.failure = str(error)
            return None
        if self.failure:
            log.info("journal_writable_again", path=str(self._path))
            self.failure = ""
        return results


def _make_private(path: Path) -> None:
    """Create the file for its user alone; SQLite gives the files beside it the same mode."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    for suffix in ("", "-wal", "-shm"):  # of an earlier version that was less careful
        file = path.with_name(path.name + suffix)
        if file.exists():
            file.chmod(0o600)


def _resolve(operations: Sequence[_Operation], results: Sequence[object]) -> None:
    for operation, result in zip(operations, results, strict=True):
        if not operation.done.done():
            operation.done.set_result(result)
