"""What is written is read, now and after a restart; nothing else ever is."""

import stat
from pathlib import Path

import pytest

from engine.disk.events import Erased, ReadDone, Written
from engine.disk.store import Patience, open_store
from engine.errors import ConfigError
from tests.engine.disk.stores import (
    DEADLINE,
    SLOT_BYTES,
    STRIDE,
    FailingFiles,
    content,
    extents,
    get,
    key,
    make_store,
    opened,
    put,
    rows,
    wait_until,
)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """Once its event has come, from the memory that was given to the memory that is asked for."""
    with opened(tmp_path / "disk") as store:
        assert all(put(store, range(10)))
        assert all(get(store, number) for number in range(10))
        assert not get(store, 10)
        store.audit()
        assert store.stats().reads.slabs == store.stats().num_hits == 10
        assert store.stats().writes.num_bytes == 10 * SLOT_BYTES
        assert sum(store.stats().writes.latencies) == 10
        assert store.stats().used_bytes == store.used("a") == 10 * STRIDE


def test_a_block_is_found_once_it_is_on_the_disk(tmp_path: Path) -> None:
    """Not while it is being written: the event comes first."""
    files = FailingFiles()
    with opened(tmp_path / "disk", files=files) as store:
        files.hold("sync")
        assert store.write(key(1), "a", memoryview(content(key(1))))
        assert key(1) not in store
        assert not store.read(key(1), memoryview(bytearray(SLOT_BYTES)))
        assert store.poll() == []
        files.release()
        wait_until(store, lambda: key(1) in store)


def test_find_counts_from_the_first_on(tmp_path: Path) -> None:
    """A gap ends it; the range is the caller's."""
    with opened(tmp_path / "disk") as store:
        put(store, (0, 1, 3))
        keys = [key(number) for number in range(5)]
        assert [store.find(keys, start, 5) for start in range(6)] == [2, 1, 0, 1, 0, 0]
        assert store.find(keys, 0, 1) == 1


def test_a_block_is_stored_once(tmp_path: Path) -> None:
    """Neither while it is being written nor afterwards is it taken again, whoever asks."""
    with opened(tmp_path / "disk") as store:
        memory = memoryview(content(key(1)))
        assert store.write(key(1), "a", memory)
        assert not store.write(key(1), "a", memory)
        wait_until(store, lambda: key(1) in store)
        assert not store.write(key(1), "b", memory)
        assert store.stats().num_refused == 2


def test_it_survives_a_restart(tmp_path: Path) -> None:
    """Blocks with their order of use, for owners whose limits are set again."""
    with opened(tmp_path / "disk", 4) as store:
        put(store, range(4))
        store.touch([key(0)], 4e9)
        store.set_value(key(1), 1e9)
    with opened(tmp_path / "disk", 4) as store:
        assert sorted(store.keys()) == sorted(key(number) for number in range(4))
        assert all(get(store, number) for number in range(4))
        put(store, (4, 5))
        store.audit()
        assert [key(number) in store for number in range(6)] == [True, True, False, False, True, True]


def test_nothing_is_found_before_its_owner_has_a_limit(tmp_path: Path) -> None:
    """What is stored waits for it; a worker that starts must not serve under limits that it does not know."""
    with opened(tmp_path / "disk") as store:
        put(store, range(3))
    store = make_store(tmp_path / "disk")
    assert store.owners() == ["a"]
    assert key(0) not in store
    assert store.find([key(0)], 0, 1) == 0
    assert not store.read(key(0), memoryview(bytearray(SLOT_BYTES)))
    assert not store.write(key(9), "a", memoryview(content(key(9))))
    store.limit("b", 16 * STRIDE)
    assert not get(store, 0)
    store.limit("a", 16 * STRIDE)
    assert all(get(store, number) for number in range(3))
    store.close(DEADLINE)


def test_it_does_not_grow_before_it_is_used(tmp_path: Path) -> None:
    """Files are made one by one as they are needed, with all their room, and never more than the ceiling."""
    with opened(tmp_path / "disk", 10) as store:
        assert extents(tmp_path / "disk") == []
        put(store, range(3))
        assert [path.stat().st_size for path in extents(tmp_path / "disk")] == [4 * STRIDE]
        put(store, range(3, 20))
        assert [path.stat().st_size // STRIDE for path in extents(tmp_path / "disk")] == [4, 4, 2]
        assert [path.stat().st_blocks * 512 // STRIDE for path in extents(tmp_path / "disk")] == [4, 4, 2]
        store.audit()


def test_the_queue_of_writes_is_bounded(tmp_path: Path) -> None:
    """What comes on top is refused, not queued; and taken again when the disk has caught up."""
    files = FailingFiles()
    patience = Patience(queued_bytes=3 * STRIDE, read_seconds=DEADLINE)
    with opened(tmp_path / "disk", files=files, patience=patience) as store:
        files.hold("write")
        taken = [store.write(key(number), "a", memoryview(content(key(number)))) for number in range(5)]
        assert taken == [True, True, True, False, False]
        files.release()
        wait_until(store, lambda: key(2) in store)
        assert all(put(store, (3, 4)))


def test_memory_of_another_size_is_a_mistake(tmp_path: Path) -> None:
    """It is never a block; read-only memory is none to read to."""
    with opened(tmp_path / "disk") as store:
        with pytest.raises(ValueError, match="a slab has 5000 bytes, not 4999"):
            store.write(key(1), "a", memoryview(bytes(SLOT_BYTES - 1)))
        with pytest.raises(ValueError, match="a slab has 5000 bytes, not 0"):
            store.read(key(1), memoryview(b""))
        put(store, (1,))
        with pytest.raises(ValueError, match="cannot be written"):
            store.read(key(1), memoryview(bytes(SLOT_BYTES)))


def test_events_come_once_and_tell_which(tmp_path: Path) -> None:
    """One for each call that was taken."""
    with opened(tmp_path / "disk") as store:
        put(store, range(4))
        memories = {number: bytearray(SLOT_BYTES) for number in range(4)}
        for number, memory in memories.items():
            assert store.read(key(number), memoryview(memory))
        assert store.write(key(7), "b", memoryview(content(key(7))))
        ticket = store.drop([key(99)])
        events = wait_until(store, lambda: key(7) in store)
        wait_until(store, lambda: len(events) >= 6, events)
        assert sorted(e.key for e in events if isinstance(e, ReadDone) and e.ok) == sorted(map(key, range(4)))
        assert [event for event in events if isinstance(event, Written)] == [Written(key(7), True)]
        assert [event for event in events if isinstance(event, Erased)] == [Erased(ticket)]
        assert all(memory == content(key(number)) for number, memory in memories.items())


def test_after_the_end_nothing_is_done(tmp_path: Path) -> None:
    """Calls are misses; closing again does nothing; another store may open the folder."""
    with opened(tmp_path / "disk") as store:
        put(store, (1,))
    assert store.problem == "the store is closed"
    assert key(1) not in store
    assert not store.write(key(2), "a", memoryview(content(key(2))))
    assert not store.put_session("a", "chat", b"record")
    assert store.poll() == []
    store.close(DEADLINE)
    assert set(rows(tmp_path / "disk")) == {key(1)}


def test_only_its_owner_can_read_it(tmp_path: Path) -> None:
    """Folder and files, also where the folder was open to others."""
    (tmp_path / "disk").mkdir(mode=0o755)
    with opened(tmp_path / "disk") as store:
        put(store, (1,))
        assert stat.S_IMODE((tmp_path / "disk").stat().st_mode) == 0o700
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "disk").iterdir()}
    assert set(modes.values()) == {0o600}, modes


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    """A setting that can never work is an error at the start."""
    (tmp_path / "disk").write_text("mine")
    with pytest.raises(ConfigError, match=r"ENGINE_DISK_DIR: .*disk is no folder"):
        make_store(tmp_path / "disk")


def test_the_tier_has_no_room_for_a_block(tmp_path: Path) -> None:
    """A ceiling below one slab is a store that takes nothing."""
    store = open_store(tmp_path / "disk", SLOT_BYTES, STRIDE - 1, "model")
    store.limit("a", 1 << 30)
    assert not store.write(key(1), "a", memoryview(content(key(1))))
    assert store.problem == ""
    store.close(DEADLINE)
