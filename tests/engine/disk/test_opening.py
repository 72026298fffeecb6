"""Whatever is found in the folder, the store opens: with what is its own and whole, and nothing else."""

import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.disk.index import FILE_NAME
from engine.disk.store import DiskStore
from tests.engine.disk.stores import (
    DEADLINE,
    STRIDE,
    content,
    extents,
    get,
    holding,
    key,
    make_store,
    opened,
    put,
    wait_until,
)


def filled(folder: Path) -> None:
    """Make a store of six blocks and some records."""
    with opened(folder) as store:
        put(store, range(6))
        for number in range(40):
            store.put_session("a", f"chat {number}", b"planted record %d" % number)


def all_gone(folder: Path, store: DiskStore) -> bool:
    """Whether nothing of `filled` is found, read, or on the disk."""
    wait_until(store, lambda: not store.is_busy and not list(folder.glob("stale-*")))
    assert not any(get(store, number) for number in range(6))
    assert store.sessions("a") == []
    return holding(folder, b"planted record", *(content(key(number))[:64] for number in range(6))) == []


def works(store: DiskStore) -> bool:
    """Whether blocks can be written and read."""
    return all(put(store, range(50, 56))) and all(get(store, number) for number in range(50, 56))


@pytest.mark.parametrize(
    "other", [{"fingerprint": "another model"}, {"slot_bytes": 4000}, {"slot_bytes": 5001}, {"slot_bytes": 9000}]
)
def test_a_store_of_another_model_or_block_size_is_erased(tmp_path: Path, other: dict[str, object]) -> None:
    """Overwritten, not merely unlinked, as one that it was made for finds out afterwards."""
    filled(tmp_path / "disk")
    link = tmp_path / "the same file"
    link.hardlink_to(extents(tmp_path / "disk")[0])
    with opened(tmp_path / "disk", **other) as store:
        wait_until(store, lambda: not store.is_busy and not list((tmp_path / "disk").glob("stale-*")))
        assert store.keys() == store.owners() == []
        assert not any(link.read_bytes())
        assert holding(tmp_path / "disk", b"planted record", content(key(0))[:64]) == []
    with opened(tmp_path / "disk") as store:
        assert all_gone(tmp_path / "disk", store)
        assert works(store)


def spoil_format(path: Path) -> None:
    """Say that it is of a later version."""
    db = sqlite3.connect(path)
    with db:
        db.execute("UPDATE meta SET value = '99' WHERE name = 'format'")
    db.close()


def other_tables(path: Path) -> None:
    """Make it somebody else's database."""
    path.unlink()
    db = sqlite3.connect(path)
    with db:
        db.execute("CREATE TABLE mine (text)")
    db.close()


@pytest.mark.parametrize(
    "spoil",
    [
        spoil_format,
        other_tables,
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"no database " * 1000),
        lambda path: path.write_bytes(path.read_bytes()[:8000]),
        lambda path: path.write_bytes(path.read_bytes()[:4096] + bytes(path.stat().st_size - 4096)),
    ],
    ids=["format", "foreign", "deleted", "empty", "text", "truncated", "zeros"],
)
def test_a_lost_index_is_a_new_store(tmp_path: Path, spoil: Callable[[Path], object]) -> None:
    """Slabs that nobody names are no use to anybody: they are overwritten."""
    filled(tmp_path / "disk")
    spoil(tmp_path / "disk" / FILE_NAME)
    with opened(tmp_path / "disk") as store:
        assert store.problem == ""
        assert all_gone(tmp_path / "disk", store)
        assert works(store)
        store.audit()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=20))
def test_any_flips_in_the_index(tmp_path: Path, flips: list[tuple[float, int]]) -> None:
    """Whatever it says then, no wrong byte is ever served, and the store works on."""
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    with opened(folder) as store:
        assert all(put(store, range(6)))
        store.put_session("a", "chat", b"record")
    path = folder / FILE_NAME
    data = bytearray(path.read_bytes())
    for place, mask in flips:
        data[int(place * len(data))] ^= mask
    path.write_bytes(data)
    with opened(folder) as store:
        assert store.problem == ""
        for number in range(6):
            get(store, number)  # which looks at the bytes
        assert set(store.sessions("a")) <= {("chat", b"record")}
        wait_until(store, lambda: not (store.is_bypassed or store.is_busy or list(folder.glob("stale-*"))))
        assert works(store)
        store.audit()


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(table=st.sampled_from(["slabs", "extents", "owners", "dirty", "meta"]), data=st.data())
def test_any_nonsense_in_the_index(tmp_path: Path, table: str, data: st.DataObject) -> None:
    """Values of any type in any column are no reason to fail, nor to believe them."""
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    with opened(folder) as store:
        assert all(put(store, range(6)))
    db = sqlite3.connect(folder / FILE_NAME)
    columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
    column = data.draw(st.sampled_from(columns))
    value = data.draw(st.none() | st.integers(-3, 2**62) | st.floats() | st.binary(max_size=40) | st.text(max_size=9))
    try:
        with db:
            db.execute(f"UPDATE OR IGNORE {table} SET {column} = ?", (value,))
    except (sqlite3.Error, UnicodeEncodeError):
        pass  # SQLite itself refuses it
    finally:
        db.close()
    with opened(folder) as store:
        for number in range(6):
            get(store, number)
        wait_until(store, lambda: not (store.is_bypassed or store.is_busy or list(folder.glob("stale-*"))))
        assert works(store)
        store.audit()


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    """Only what is named like the store's own is erased; a link is removed, not followed."""
    filled(tmp_path / "disk")
    (tmp_path / "disk" / "notes").write_text("mine")
    (tmp_path / "mine").write_text("not to be touched")
    (tmp_path / "disk" / "slabs-000009").symlink_to(tmp_path / "mine")
    (tmp_path / "disk" / "slabs-000007").write_bytes(b"planted record")
    with opened(tmp_path / "disk") as store:
        wait_until(store, lambda: not list((tmp_path / "disk").glob("stale-*")))
        assert all(get(store, number) for number in range(6))
    assert (tmp_path / "disk" / "notes").read_text() == "mine"
    assert (tmp_path / "mine").read_text() == "not to be touched"
    assert not (tmp_path / "disk" / "slabs-000009").is_symlink()
    assert not (tmp_path / "disk" / "slabs-000007").exists()


def test_one_store_at_a_time(tmp_path: Path) -> None:
    """A second one is bypassed, says why, and takes over when the first is closed."""
    first = make_store(tmp_path / "disk")
    first.limit("a", 16 * STRIDE)
    put(first, range(2))
    second = make_store(tmp_path / "disk")
    second.limit("a", 16 * STRIDE)
    assert "another process has" in second.problem
    assert not second.write(key(5), "a", memoryview(content(key(5))))
    assert put(first, [2]) == [True]
    first.close(DEADLINE)
    wait_until(second, lambda: not second.is_bypassed)
    assert all(get(second, number) for number in range(3))
    second.close(DEADLINE)


def test_new_files_wait_for_the_room_of_old_ones(tmp_path: Path) -> None:
    """While a former store is being overwritten, both together stay within the ceiling."""
    with opened(tmp_path / "disk", 8) as store:
        put(store, range(8))
    with opened(tmp_path / "disk", 8, fingerprint="another") as store:
        folder = tmp_path / "disk"
        while list(folder.glob("stale-*")):
            put(store, range(20, 24))
            assert sum(_size(path) for path in folder.iterdir() if path.name[:5] in ("slabs", "stale")) <= 8 * STRIDE
        wait_until(store, lambda: not store.is_busy)
        put(store, range(8))
        assert all(get(store, number) for number in range(4))
        store.audit()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
