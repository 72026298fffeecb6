"""Whatever instant a process dies at, and whatever the disk had not got by then: what the index names is whole."""

import mmap
import random
import shutil
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path

from engine.disk.store import DiskStore
from tests.engine.disk.stores import (
    DEADLINE,
    STRIDE,
    FailingFiles,
    content,
    erased,
    get,
    holding,
    key,
    make_store,
    opened,
    put,
    wait_until,
)

ROOT = Path(__file__).parents[3]


def check_all(store: DiskStore) -> int:
    """Read all that a store has; return how much that is."""
    numbers = [number for number in range(200) if key(number) in store]
    assert len(numbers) == len(store.keys())
    assert all(get(store, number) for number in numbers)
    store.audit()
    return len(numbers)


def test_killed_at_any_instant(tmp_path: Path) -> None:
    """Again and again over one folder: every block is whole, ceilings hold, and what was said to be erased is."""
    draw, found, ended = random.Random(6), 0, 0
    for life in range(36):
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.engine.disk.writer", str(tmp_path / "disk"), str(life)],
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"ready\n"
            said = [process.stdout.readline() for _ in range(draw.randrange(12))]
            time.sleep(draw.random() * 0.01)
        finally:
            process.kill()
            rest, _ = process.communicate()
        sessions = [number.strip() for number in (*said, *rest.splitlines()[:-1])]  # the last line may be torn
        ended += len(sessions)
        assert holding(tmp_path / "disk", *(b"planted in chat %s." % number for number in sessions)) == []
        if life % 3 == 2:
            store = make_store(tmp_path / "disk", 24)
            store.limit("plain", 16 * STRIDE)
            store.limit("secret", 16 * STRIDE, b"s" * 32)
            assert store.problem == ""
            found += check_all(store)
            store.close(DEADLINE)
    assert found > 10
    assert ended > 10


class Volatile(FailingFiles):
    """A disk with a cache of its own: until it is synced, any part of what was written may be lost.

    Before its call number `cut_at` it takes a picture of itself. The index is at rest during any of these calls.
    """

    def __init__(self, draw: random.Random, cut_at: int, take_picture: Callable[[], None]) -> None:
        super().__init__()
        self._draw, self._left, self._take_picture = draw, cut_at, take_picture
        self._cached: defaultdict[int, list[tuple[int, bytes]]] = defaultdict(list)
        self._lock = threading.Lock()

    def write(self, file: int, data: memoryview, offset: int) -> int:
        """Keep it, and let some of it reach the disk early, in no order."""
        pieces = [(offset + at, bytes(data[at : at + 4096])) for at in range(0, len(data), 4096)]
        with self._lock:
            self._count()
            for place, piece in pieces:
                if self._draw.random() < 0.3:
                    super().write(file, aligned(piece), place)
            self._cached[file] += pieces
        return len(data)

    def read(self, file: int, into: memoryview, offset: int) -> int:
        """See what was written."""
        with self._lock:
            count = super().read(file, into, offset)
            for place, piece in self._cached[file]:
                if offset <= place < offset + count:
                    into[place - offset : place - offset + len(piece)] = piece
        return count

    def sync(self, file: int) -> None:
        """Let all of it reach the disk."""
        with self._lock:
            self._count()
            for place, piece in self._cached.pop(file, []):
                super().write(file, aligned(piece), place)
            super().sync(file)

    def _count(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._take_picture()


def aligned(piece: bytes) -> memoryview:
    """Return memory for direct I/O."""
    memory = memoryview(mmap.mmap(-1, len(piece)))
    memory[:] = piece
    return memory


def test_power_cut_at_any_instant(tmp_path: Path) -> None:
    """What had not been synced is lost in part: the index names none of it."""
    draw, found, cuts = random.Random(7), 0, 0
    for life in range(40):
        cut = tmp_path / f"cut-{life}"
        files = Volatile(draw, draw.randrange(1, 60), partial(copy_all, tmp_path / "disk", cut))
        with opened(tmp_path / "disk", 8, files=files) as store:
            found += check_all(store)
            for number in draw.sample(range(200), 16):
                store.write(key(number), "a", memoryview(content(key(number))))
                if draw.random() < 0.3:
                    store.drop([key(draw.randrange(200))])
                if draw.random() < 0.3:
                    wait_until(store, lambda: not store.is_busy)
        if cut.exists():
            cuts += 1
            shutil.rmtree(tmp_path / "disk")
            cut.rename(tmp_path / "disk")
    assert found > 100
    assert cuts > 10


def copy_all(folder: Path, target: Path) -> None:
    """Copy what is on the disk."""
    target.mkdir()
    for path in folder.iterdir():
        shutil.copyfile(path, target / path.name)


def test_an_erasure_is_kept_over_a_crash(tmp_path: Path) -> None:
    """What is being overwritten is named no more, and the next life ends what this one began."""
    files = FailingFiles()
    store = make_store(tmp_path / "disk", files=files)
    store.limit("a", 16 * STRIDE)
    put(store, range(4))
    files.hold("write")
    store.drop([key(0), key(1)])
    wait_until(store, lambda: files.num_held > 0)  # by the keeper's order: the index is written, the slots are not
    copy_all(tmp_path / "disk", tmp_path / "copy")
    files.release()
    store.close(DEADLINE)
    assert (
        holding(tmp_path / "copy", content(key(0))) == holding(tmp_path / "copy", content(key(1))) == ["slabs-000000"]
    )
    with opened(tmp_path / "copy") as after:
        assert sorted(after.keys()) == sorted((key(2), key(3)))
        erased(after, after.drop([key(0), key(1)]))
        assert holding(tmp_path / "copy", content(key(0)), content(key(1))) == []
        assert get(after, 2)
        assert get(after, 3)
