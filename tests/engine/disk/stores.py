"""Small stores for tests, blocks that tell what they should hold, and files that fail when told to."""

import errno
import hashlib
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from engine.disk.events import DiskEvent, Erased, ReadDone, Written
from engine.disk.files import Files
from engine.disk.index import FILE_NAME
from engine.disk.store import DiskStore, Patience, open_store
from engine.memory.eviction.base import BlockKey

SLOT_BYTES = 5000  # no multiple of a page
STRIDE = 8192
SLOTS_OF_AN_EXTENT = 4
DEADLINE = 60.0
QUICK = Patience(read_seconds=DEADLINE, retry_seconds=0.01, again_seconds=0.01)


def key(number: int) -> BlockKey:
    """Return one of many keys."""
    return BlockKey(hashlib.sha256(b"key %d" % number).digest())


def content(of: BlockKey, size: int = SLOT_BYTES) -> bytes:
    """Return what a block holds: bytes that no other one has."""
    return hashlib.shake_128(of).digest(size)


def make_store(
    folder: Path,
    num_slots: int = 16,
    *,
    fingerprint: str = "model",
    slot_bytes: int = SLOT_BYTES,
    files: Files | None = None,
    patience: Patience = QUICK,
) -> DiskStore:
    """Open a small store with short extents."""
    total, extent = num_slots * STRIDE, SLOTS_OF_AN_EXTENT * STRIDE
    return open_store(folder, slot_bytes, total, fingerprint, files=files, patience=patience, extent_bytes=extent)


@contextmanager
def opened(folder: Path, num_slots: int = 16, **options: object) -> Iterator[DiskStore]:
    """Open a small store in which two owners may have all, and close it."""
    store = make_store(folder, num_slots, **options)  # type: ignore[arg-type]  # the same ones
    try:
        for owner in ("a", "b"):
            store.limit(owner, num_slots * STRIDE)
        yield store
    finally:
        store.close(DEADLINE)


def wait_until(store: DiskStore, is_so: Callable[[], object], seen: list[DiskEvent] | None = None) -> list[DiskEvent]:
    """Poll until something is so; return all events, added to those seen before."""
    events = [] if seen is None else seen
    deadline = time.monotonic() + DEADLINE
    while True:
        events += store.poll()
        if is_so():
            return events
        assert time.monotonic() < deadline, f"still not so; {store.stats()}"
        time.sleep(0.0005)


def put(store: DiskStore, numbers: Iterable[int], owner: str = "a", *, value: float = 0.0) -> list[bool]:
    """Write blocks and wait for them; return which are on the disk."""
    events: list[DiskEvent] = []
    keys = [key(number) for number in numbers]
    taken = {one for one in keys if store.write(one, owner, memoryview(content(one)), value=value)}
    wait_until(store, lambda: {event.key for event in events if isinstance(event, Written)} >= taken, events)
    written = {event.key for event in events if isinstance(event, Written) and event.ok}
    return [one in taken & written for one in keys]


def get(store: DiskStore, number: int) -> bool:
    """Read a block; return whether it is there, and fail if it is anything but what it should be."""
    memory = bytearray(b"\xaa" * SLOT_BYTES)
    if not store.read(key(number), memoryview(memory)):
        return False
    events: list[DiskEvent] = []
    wait_until(store, lambda: any(isinstance(event, ReadDone) for event in events), events)
    (done,) = (event for event in events if isinstance(event, ReadDone))
    assert done.key == key(number)
    assert not done.ok or memory == content(key(number))
    return done.ok


def erased(store: DiskStore, *tickets: int) -> None:
    """Wait until these erasures are over."""
    events: list[DiskEvent] = []
    wait_until(store, lambda: {e.ticket for e in events if isinstance(e, Erased)} >= set(tickets), events)


def extents(folder: Path) -> list[Path]:
    """Return the files of slabs."""
    return sorted(folder.glob("slabs-*"))


def holding(folder: Path, *patterns: bytes) -> list[str]:
    """Return the names of all files of a folder in which any of these bytes are."""
    found = []
    for path in folder.rglob("*"):
        data = path.read_bytes() if path.is_file() else b""
        found += [path.name] if any(pattern in data for pattern in patterns) else []
    return sorted(found)


def rows(folder: Path) -> dict[bytes, int]:
    """Return what the index of a closed store names: key → slot."""
    db = sqlite3.connect(folder / FILE_NAME)
    try:
        return dict(db.execute("SELECT key, slot FROM slabs"))
    finally:
        db.close()


class FailingFiles(Files):
    """The real files, but for calls that a test lets fail or holds up."""

    def __init__(self) -> None:
        self.failing: dict[str, int] = {}  # name of a call → errno
        self.gate = threading.Event()  # closed: calls in `held` wait
        self.gate.set()
        self.held: set[str] = set()
        self.num_held = 0  # calls that wait
        self.threads: set[int] = set()  # that ever made a call

    def fail(self, *calls: str, code: int = errno.EIO) -> None:
        """Let calls fail from now on."""
        self.failing.update(dict.fromkeys(calls, code))

    def hold(self, *calls: str) -> None:
        """Let calls wait from now on, until the gate is open."""
        self.gate.clear()
        self.held.update(calls)

    def release(self) -> None:
        """Let all go on."""
        self.held.clear()
        self.gate.set()

    def open(self, path: Path, flags: int) -> int:
        """As the name says."""
        self._pass("open")
        return super().open(path, flags)

    def allocate(self, file: int, num_bytes: int) -> None:
        """As the name says."""
        self._pass("allocate")
        super().allocate(file, num_bytes)

    def read(self, file: int, into: memoryview, offset: int) -> int:
        """As the name says."""
        self._pass("read")
        return super().read(file, into, offset)

    def write(self, file: int, data: memoryview, offset: int) -> int:
        """As the name says."""
        self._pass("write")
        return super().write(file, data, offset)

    def sync(self, file: int) -> None:
        """As the name says."""
        self._pass("sync")
        super().sync(file)

    def connect(self, path: Path) -> sqlite3.Connection:
        """As the name says."""
        self._pass("connect")
        return super().connect(path)

    def _pass(self, call: str) -> None:
        self.threads.add(threading.get_ident())
        if call in self.held:
            self.num_held += 1
            assert self.gate.wait(DEADLINE)
        code = self.failing.get(call)
        if code is not None:
            raise OSError(code, "made to fail")
