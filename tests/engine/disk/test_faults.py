"""Disks fail in all ways: answers stay right, the loop never waits, and the store comes back when the disk does."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.disk.events import DiskEvent, ReadDone, Written
from engine.disk.store import DiskStore, Patience
from tests.engine.disk.stores import (
    DEADLINE,
    QUICK,
    SLOT_BYTES,
    SLOTS_OF_AN_EXTENT,
    STRIDE,
    FailingFiles,
    content,
    erased,
    extents,
    get,
    holding,
    key,
    make_store,
    opened,
    put,
    rows,
    wait_until,
)

EVERY_REGION = [0, 1, 4095, 4096, SLOT_BYTES - 1]
ROOT = Path(__file__).parents[3]


def flip(path: Path, place: int, mask: int = 1) -> None:
    """Change bits on the disk."""
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ mask]))


def limit_both(store: DiskStore) -> None:
    """Let a plain owner and one with a secret have all."""
    store.limit("a", 16 * STRIDE)
    store.limit("b", 16 * STRIDE, b"s" * 32)


# ---------------------------------------------------------------- bytes that are not what they were


@pytest.mark.parametrize("owner", ["a", "b"])
@pytest.mark.parametrize("place", EVERY_REGION)
def test_a_flipped_bit_is_a_miss(tmp_path: Path, owner: str, place: int) -> None:
    """Wherever it is, plain or encrypted; its neighbours are read, and the block can be written anew."""
    with opened(tmp_path / "disk") as store:
        limit_both(store)
        put(store, range(3), owner)
    slot = rows(tmp_path / "disk")[key(1)]
    flip(extents(tmp_path / "disk")[0], slot * STRIDE + place)
    store = make_store(tmp_path / "disk")
    limit_both(store)
    assert [get(store, number) for number in range(3)] == [True, False, True]
    assert key(1) not in store
    assert store.stats().errors == {"torn": 1}
    assert store.problem == ""
    wait_until(store, lambda: not store.is_busy)
    assert put(store, [1], owner) == [True]
    assert get(store, 1)
    store.audit()
    store.close(DEADLINE)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(flips=st.dictionaries(st.integers(0, SLOT_BYTES - 1), st.integers(1, 255), min_size=1, max_size=9))
def test_any_flips_are_a_miss(tmp_path: Path, flips: dict[int, int]) -> None:
    """However many, while the store runs."""
    with opened(tmp_path / "disk") as store:
        limit_both(store)
        for number, owner in ((0, "a"), (1, "b")):
            assert get(store, number) or put(store, [number], owner) == [True]
        for path in extents(tmp_path / "disk"):
            for slot in range(path.stat().st_size // STRIDE):
                for place, mask in flips.items():
                    flip(path, slot * STRIDE + place, mask)
        assert not get(store, 0)
        assert not get(store, 1)
        wait_until(store, lambda: not store.is_busy)


def test_another_block_in_its_place_is_a_miss(tmp_path: Path) -> None:
    """A disk that wrote a slab to the wrong place is found out: the proof is of that block of that owner."""
    with opened(tmp_path / "disk") as store:
        put(store, range(2))
    path, slots = extents(tmp_path / "disk")[0], rows(tmp_path / "disk")
    data = bytearray(path.read_bytes())
    one, other = slots[key(0)] * STRIDE, slots[key(1)] * STRIDE
    data[one : one + STRIDE], data[other : other + STRIDE] = data[other : other + STRIDE], data[one : one + STRIDE]
    path.write_bytes(data)
    with opened(tmp_path / "disk") as store:
        assert not get(store, 0)
        assert not get(store, 1)


# ---------------------------------------------------------------- files that are not what they were


@pytest.mark.parametrize("length", [0, STRIDE + 100, 2 * STRIDE])
def test_a_truncated_extent_while_running(tmp_path: Path, length: int) -> None:
    """What is beyond the end is a miss, what is not stays; the room is used again."""
    with opened(tmp_path / "disk") as store:
        put(store, range(4))
        os.truncate(extents(tmp_path / "disk")[0], length)
        found = [get(store, number) for number in range(4)]
        assert sum(found) == length // STRIDE
        wait_until(store, lambda: not store.is_busy and not store.is_bypassed)
        put(store, range(4))
        assert all(get(store, number) for number in range(4))


@pytest.mark.parametrize("length", [0, STRIDE + 100, 2 * STRIDE])
def test_a_truncated_extent_at_the_start(tmp_path: Path, length: int) -> None:
    """The index names what is there; the file has its whole length again."""
    with opened(tmp_path / "disk") as store:
        put(store, range(4))
    os.truncate(extents(tmp_path / "disk")[0], length)
    with opened(tmp_path / "disk") as store:
        assert len(store.keys()) == length // STRIDE
        assert sum(get(store, number) for number in range(4)) == length // STRIDE
        assert extents(tmp_path / "disk")[0].stat().st_size == 4 * STRIDE
        put(store, range(4))
        assert all(get(store, number) for number in range(4))
        store.audit()


def test_a_deleted_extent_at_the_start(tmp_path: Path) -> None:
    """Its blocks are gone, those of the others are not."""
    with opened(tmp_path / "disk") as store:
        put(store, range(8))
    gone = {one for one, slot in rows(tmp_path / "disk").items() if slot < 4}
    extents(tmp_path / "disk")[0].unlink()
    with opened(tmp_path / "disk") as store:
        assert set(store.keys()) == set(map(key, range(8))) - gone
        assert sum(get(store, number) for number in range(8)) == 4
        put(store, range(8))
        assert all(get(store, number) for number in range(8))
        store.audit()


def test_a_deleted_folder_while_running(tmp_path: Path) -> None:
    """Nothing wrong is ever read; after a restart it is a new store, and so it is when the folder is another one."""
    with opened(tmp_path / "disk") as store:
        put(store, range(4))
        shutil.rmtree(tmp_path / "disk")
        for number in range(4):
            get(store, number)
        put(store, range(4, 14))
        wait_until(store, lambda: not store.is_bypassed and not store.is_busy)
        assert all(put(store, range(20, 24)))
        assert all(get(store, number) for number in range(20, 24))
        assert (tmp_path / "disk" / "index.sqlite").exists()
        store.audit()
    with opened(tmp_path / "disk") as store:
        assert all(get(store, number) for number in range(20, 24))


# ---------------------------------------------------------------- calls that fail


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOENT, errno.ESTALE, errno.ENOTCONN])
@pytest.mark.parametrize("call", ["read", "write", "sync", "allocate"])
def test_a_disk_that_vanishes_is_bypassed_until_it_is_back(tmp_path: Path, call: str, code: int) -> None:
    """Each call ends, with the truth; then nothing is tried for a while; then what was stored is there again."""
    files = FailingFiles()
    with opened(tmp_path / "disk", files=files) as store:
        put(store, range(4))
        files.fail(call, code=code)
        deadline = 0
        while not store.is_bypassed:
            deadline += 1
            assert deadline < 100
            number = deadline + 10
            assert put(store, [number]) == [call == "read"]
            if call == "read" and key(number) in store:
                assert not get(store, number)
        assert store.problem != ""
        assert not store.write(key(9), "a", memoryview(content(key(9))))
        assert store.find([key(0)], 0, 1) == 0
        files.failing.clear()
        wait_until(store, lambda: not store.is_bypassed)
        assert store.problem == ""
        assert all(get(store, number) for number in range(3))
        assert put(store, [9]) == [True]
        wait_until(store, lambda: not store.is_busy)
        store.audit()


def test_one_bad_sector_does_not_bypass_the_disk(tmp_path: Path) -> None:
    """What fails now and then among what does not fails alone."""
    files = FailingFiles()
    with opened(tmp_path / "disk", files=files) as store:
        for round_ in range(20):
            put(store, range(8))
            assert all(get(store, number) for number in range(8))
            files.fail("read")
            assert not get(store, round_ % 8)
            files.failing.clear()
            assert not store.is_bypassed
            wait_until(store, lambda: not store.is_busy)
        assert store.stats().errors == {"read": 20}


def test_a_folder_that_cannot_be_opened_is_tried_again(tmp_path: Path) -> None:
    """A worker starts without its disk, and has it once it is there."""
    files = FailingFiles()
    files.fail("open")
    with opened(tmp_path / "disk", files=files) as store:
        assert "OSError" in store.problem
        assert not store.write(key(1), "a", memoryview(content(key(1))))
        files.failing.clear()
        wait_until(store, lambda: not store.is_bypassed)
        assert put(store, [1]) == [True]


# ---------------------------------------------------------------- no room


def test_a_full_disk_keeps_what_it_has(tmp_path: Path) -> None:
    """A file that cannot be made is no trouble: blocks replace one another, and it is tried again later."""
    files = FailingFiles()
    with opened(tmp_path / "disk", files=files) as store:
        put(store, range(4))
        files.fail("allocate", code=errno.ENOSPC)
        assert put(store, [4]) == [False]
        assert store.stats().errors["full"] == 1
        assert "full" in store.problem
        assert not store.is_bypassed
        store.audit()
        number = next(number for number in range(5, 99) if put(store, [number]) == [True])
        assert get(store, number)
        assert "full" in store.problem
        files.failing.clear()
        for number in range(100, 999):
            put(store, [number])
            if not store.problem:
                break
        put(store, range(20, 32))
        assert sum(get(store, number) for number in range(20, 32)) == 12
        assert len(extents(tmp_path / "disk")) == 4
        store.audit()


def test_a_full_disk_from_the_start(tmp_path: Path) -> None:
    """With nothing at all to replace, nothing is taken."""
    files = FailingFiles()
    files.fail("allocate", code=errno.EDQUOT)
    patience = Patience(again_seconds=3600)
    with opened(tmp_path / "disk", files=files, patience=patience) as store:
        assert not any(put(store, range(6)))
        assert not store.write(key(9), "a", memoryview(content(key(9))))
        assert not store.is_bypassed
        store.audit()


def test_a_real_limit_of_the_system(tmp_path: Path) -> None:
    """With no file larger than 48 KiB (RLIMIT_FSIZE): the index and the extents stay right, whatever of it hits."""
    code = """
import resource, sys
from pathlib import Path
from tests.engine.disk.stores import *
folder = Path(sys.argv[1])
with opened(folder) as store:
    put(store, range(4))
    resource.setrlimit(resource.RLIMIT_FSIZE, (49152, resource.RLIM_INFINITY))
    for number in range(200):
        put(store, [number])
        store.put_session("a", f"chat {number}", b"x" * 1000)
        get(store, number % 7)
    print(sorted(store.stats().errors))
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    wait_until(store, lambda: not store.is_bypassed)
    assert put(store, [300]) == [True] and get(store, 300)
    store.audit()
with opened(folder) as store:
    for one in range(301):
        get(store, one)
    assert get(store, 300)
"""
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, str(tmp_path / "disk")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGXFSZ, signal.SIG_IGN),
    )
    assert run.returncode == 0, run.stderr
    assert "full" in run.stdout or "index" in run.stdout


# ---------------------------------------------------------------- slow and stuck


def test_a_slow_read_delays_no_other(tmp_path: Path) -> None:
    """One waits as long as it takes; those behind it, and the loop, do not."""

    class OneSlow(FailingFiles):
        slow_offset = -1

        def read(self, file: int, into: memoryview, offset: int) -> int:
            if offset == self.slow_offset:
                assert self.gate.wait(DEADLINE)
            return super().read(file, into, offset)

    files = OneSlow()
    with opened(tmp_path / "disk", files=files) as store:
        put(store, range(4))
        offset = _slots(store)[key(0)] * STRIDE
        files.gate.clear()
        files.slow_offset = offset
        memory = bytearray(SLOT_BYTES)
        assert store.read(key(0), memoryview(memory))
        assert all(get(store, number) for number in (1, 2, 3, 1, 2, 3))
        assert put(store, [7]) == [True]
        assert memory == bytes(SLOT_BYTES)
        files.gate.set()
        events: list[DiskEvent] = []
        wait_until(store, lambda: any(isinstance(event, ReadDone) and event.ok for event in events), events)
        assert memory == content(key(0))


def _slots(store: DiskStore) -> dict[bytes, int]:
    assert store._life is not None
    return {one: slab.slot for one, slab in store._life._blocks.items()}


def test_the_loop_makes_no_call_and_waits_for_none(tmp_path: Path) -> None:
    """With every call of the disk held up, all that the loop may ask returns; its thread touches no file."""
    files = FailingFiles()
    store = make_store(tmp_path / "disk", files=files)
    limit_both(store)
    put(store, range(8))
    files.hold("read", "write", "sync", "allocate", "open", "connect")
    files.threads.clear()
    ended = threading.Event()

    def loop() -> None:
        for number in range(8, 30):
            store.write(key(number), "ab"[number % 2], memoryview(content(key(number))))
            store.read(key(number % 8), memoryview(bytearray(SLOT_BYTES)))
            store.touch([key(number)], 1e10)
            store.set_value(key(number), 3.0)
            store.find([key(number)], 0, 1)
            store.put_session("b", f"chat {number}", b"record")
            store.drop([key(number)])
            store.drop_session("b", "chat 8")
            store.sessions("b")
            store.poll()
            store.stats()
            store.audit()
        store.limit("a", STRIDE)
        store.limit("b", 16 * STRIDE, b"t" * 32)
        store.forget("a")
        store.poll()
        ended.set()

    thread = threading.Thread(target=loop)
    thread.start()
    assert ended.wait(DEADLINE)
    thread.join()
    files.release()
    wait_until(store, lambda: not store.is_busy and not store.pending_erasures)
    assert files.threads
    assert thread.ident not in files.threads
    store.audit()
    store.close(DEADLINE)


IMPATIENT = Patience(read_seconds=0.05, retry_seconds=0.01)


def test_a_read_that_takes_too_long_has_failed(tmp_path: Path) -> None:
    """Its memory is the caller's again: whatever comes late is not written to it."""
    files = FailingFiles()
    with opened(tmp_path / "disk") as patient:  # a machine as slow as it likes
        put(patient, range(3))
    with opened(tmp_path / "disk", files=files, patience=IMPATIENT) as store:
        files.hold("read")
        memory = bytearray(SLOT_BYTES)
        assert store.read(key(0), memoryview(memory))
        events = wait_until(store, lambda: not store.is_busy)
        assert [(event.key, event.ok) for event in events if isinstance(event, ReadDone)] == [(key(0), False)]
        files.release()
        wait_until(store, lambda: get(store, 1))
        assert memory == bytes(SLOT_BYTES)
        wait_until(store, lambda: get(store, 0))
        assert store.stats().errors["slow"] >= 1


@pytest.mark.parametrize("call", ["write", "sync", "allocate"])
def test_a_stuck_disk_is_given_up(tmp_path: Path, call: str) -> None:
    """Writes that never end do end for the loop; nothing is asked of the disk until it has answered."""
    files = FailingFiles()
    with opened(tmp_path / "disk") as patient:  # a machine as slow as it likes
        put(patient, range(2))
    with opened(tmp_path / "disk", files=files, patience=IMPATIENT) as store:
        files.hold(call)
        taken = [number for number in range(10, 16) if store.write(key(number), "a", memoryview(content(key(number))))]
        ticket = store.drop([key(0)])
        events = wait_until(store, lambda: store.is_bypassed)
        told = {event.key: event.ok for event in events if isinstance(event, Written)}
        assert told.keys() == set(map(key, taken))
        left = SLOTS_OF_AN_EXTENT - 2 if call == "allocate" else 0  # what is allocated can be written all the same
        assert sum(told.values()) <= left
        assert "has not answered" in store.problem
        assert store.stats().errors["stuck"] == 1
        assert store.pending_erasures == 1
        files.release()
        wait_until(store, lambda: not store.is_bypassed)
        wait_until(store, lambda: not store.pending_erasures)
        assert ticket
        assert holding(tmp_path / "disk", content(key(0))) == []
        wait_until(store, lambda: get(store, 1))
        wait_until(store, lambda: put(store, [20]) == [True] or key(20) in store)


@pytest.mark.parametrize("call", ["read", "write", "sync"])
def test_the_end_comes_even_with_a_stuck_disk(tmp_path: Path, call: str) -> None:
    """After so many seconds the rest is left as a crash would leave it; no memory is touched afterwards."""
    files = FailingFiles()
    store = make_store(tmp_path / "disk", files=files)
    store.limit("a", 16 * STRIDE)
    put(store, range(3))
    files.hold(call)
    memory, source = bytearray(SLOT_BYTES), bytearray(content(key(9)))
    store.read(key(0), memoryview(memory))
    store.write(key(9), "a", memoryview(source))
    wait_until(store, lambda: files.num_held > 0)
    ended = threading.Event()
    closing = threading.Thread(target=_close, args=(store, ended))
    closing.start()
    assert ended.wait(DEADLINE)
    closing.join()
    files.release()
    after = make_store(tmp_path / "disk")
    after.limit("a", 16 * STRIDE)
    wait_until(after, lambda: not after.is_bypassed)
    assert all(get(after, number) for number in range(3))
    assert memory in (bytes(SLOT_BYTES), content(key(0)))
    after.audit()
    after.close(DEADLINE)


def _close(store: DiskStore, ended: threading.Event) -> None:
    store.close(0.05)
    ended.set()


# ---------------------------------------------------------------- erasing meanwhile


@pytest.mark.parametrize("erase", [lambda s: s.drop([key(0)]), lambda s: s.forget("a")], ids=["drop", "forget"])
def test_what_is_erased_while_the_disk_is_bypassed(tmp_path: Path, erase: Callable[[DiskStore], int]) -> None:
    """It is remembered, done first when the disk is back, and only then said to be over."""
    files = FailingFiles()
    with opened(tmp_path / "disk", files=files, patience=QUICK) as store:
        put(store, range(2))
        files.fail("read", "open")
        while not store.is_bypassed:
            put(store, [50])
            get(store, 50)
        ticket = erase(store)
        assert store.pending_erasures == 1
        files.failing.clear()
        erased(store, ticket)
        assert key(0) not in store
        assert holding(tmp_path / "disk", content(key(0))) == []
