"""Who may have how much, and what goes first."""

from pathlib import Path

from engine.disk.events import Written
from tests.engine.disk.stores import (
    STRIDE,
    FailingFiles,
    content,
    extents,
    get,
    key,
    make_store,
    opened,
    put,
    wait_until,
)


def have(store: object, numbers: range) -> list[int]:
    """Return which blocks can be read."""
    return [number for number in numbers if key(number) in store]  # type: ignore[operator]


def test_an_owner_replaces_its_own_at_its_ceiling(tmp_path: Path) -> None:
    """The least recently used goes; the store's room does not matter."""
    with opened(tmp_path / "disk") as store:
        store.limit("a", 3 * STRIDE + STRIDE - 1)
        put(store, range(3))
        store.touch([key(0)], 4e9)
        assert put(store, [3]) == [True]
        assert have(store, range(4)) == [0, 2, 3]
        assert store.used("a") == 3 * STRIDE
        assert store.stats().num_evicted == 1
        store.audit()


def test_value_counts_as_recency(tmp_path: Path) -> None:
    """So many seconds of it; a block worth less than all that are there is not taken."""
    with opened(tmp_path / "disk") as store:
        store.limit("a", 2 * STRIDE)
        put(store, [0], value=1000)
        put(store, [1])
        put(store, [2])
        assert have(store, range(3)) == [0, 2]
        store.set_value(key(0), -1000)
        store.set_value(key(2), 500)
        put(store, [3])
        assert have(store, range(4)) == [2, 3]
        assert put(store, [4], value=-9000) == [False]
        assert have(store, range(5)) == [2, 3]


def test_lowering_a_limit_gives_up_the_least_valuable(tmp_path: Path) -> None:
    """At once, in memory; their slots serve others."""
    with opened(tmp_path / "disk", 8) as store:
        put(store, range(8))
        store.touch([key(0), key(1)], 4e9)
        store.limit("a", 3 * STRIDE)
        assert have(store, range(8)) == [0, 1, 7]
        assert all(put(store, range(8, 13), "b"))
        assert all(get(store, number) for number in (0, 1, 7, *range(8, 13)))
        store.audit()


def test_lowering_a_limit_counts_what_is_being_written(tmp_path: Path) -> None:
    """It is given up too, before it is there; its event says so."""
    files = FailingFiles()
    with opened(tmp_path / "disk", files=files) as store:
        put(store, [0])
        files.hold("sync")
        for number in range(1, 4):
            store.write(key(number), "a", memoryview(content(key(number))))
        store.limit("a", STRIDE)
        assert store.used("a") == STRIDE
        store.audit()
        files.release()
        events = wait_until(store, lambda: not store.is_busy)
        store.audit()
        assert sum(event.ok for event in events if isinstance(event, Written)) + len(have(store, range(1))) == 1
        assert store.used("a") == STRIDE


def test_an_owner_within_its_share_loses_nothing_to_others(tmp_path: Path) -> None:
    """On a full disk whoever uses most of its ceiling pays, however old the others' blocks are."""
    with opened(tmp_path / "disk", 12) as store:
        for owner in ("a", "b", "c"):
            store.limit(owner, 8 * STRIDE)
        put(store, range(4), "a")
        put(store, range(100, 108), "b")
        assert all(put(store, [number], "c") == [True] for number in range(200, 230))
        assert have(store, range(4)) == [0, 1, 2, 3]
        assert store.used("b") == store.used("c") == 4 * STRIDE
        store.audit()


def test_a_large_ceiling_weighs_more(tmp_path: Path) -> None:
    """Shares of a full disk follow the ceilings."""
    with opened(tmp_path / "disk", 12) as store:
        store.limit("a", 20 * STRIDE)
        store.limit("b", 10 * STRIDE)
        for start in range(0, 60, 2):
            put(store, [start, start + 100], "a")
            put(store, [start + 1, start + 101], "b")
        assert (store.used("a"), store.used("b")) == (8 * STRIDE, 4 * STRIDE)
        store.audit()


def test_one_owner_alone_may_have_all(tmp_path: Path) -> None:
    """Room that nobody uses is used."""
    with opened(tmp_path / "disk", 12) as store:
        assert all(put(store, [number]) == [True] for number in range(30))
        assert have(store, range(30)) == list(range(18, 30))


def test_what_is_being_read_is_not_replaced(tmp_path: Path) -> None:
    """As long as anything else can go; if nothing can, nothing is taken."""
    files = FailingFiles()
    with opened(tmp_path / "disk", 2, files=files) as store:
        put(store, range(2))
        files.hold("read")
        memories = [bytearray(5000) for _ in range(2)]
        store.read(key(0), memoryview(memories[0]))
        assert put(store, [2]) == [True]
        assert have(store, range(3)) == [0, 2]
        store.read(key(2), memoryview(memories[1]))
        assert not store.write(key(3), "a", memoryview(content(key(3))))
        files.release()
        wait_until(store, lambda: not store.is_busy)
        assert memories == [content(key(0)), content(key(2))]
        assert put(store, [3]) == [True]


def test_a_smaller_store_after_a_restart(tmp_path: Path) -> None:
    """Whole files go, those with the fewest blocks first, and what was in them is overwritten before."""
    with opened(tmp_path / "disk", 12) as store:
        put(store, range(12))
        store.drop([key(number) for number in range(4)])
        wait_until(store, lambda: not store.is_busy)
        found = {number: content(key(number)) for number in range(4, 12)}
    with opened(tmp_path / "disk", 9) as store:
        assert have(store, range(12)) == list(range(4, 12))
    with opened(tmp_path / "disk", 7) as store:
        kept = have(store, range(12))
        assert len(kept) == 4
        assert all(get(store, number) for number in kept)
        wait_until(store, lambda: not list((tmp_path / "disk").glob("stale-*")))
        data = b"".join(path.read_bytes() for path in (tmp_path / "disk").iterdir())
        assert [number for number in found if found[number][:64] in data] == kept
        for number in range(20, 40):
            put(store, [number])
        assert sum(path.stat().st_size for path in extents(tmp_path / "disk")) == 7 * STRIDE
        store.audit()


def test_a_larger_store_after_a_restart(tmp_path: Path) -> None:
    """It keeps all, and grows."""
    with opened(tmp_path / "disk", 6) as store:
        put(store, range(6))
    with opened(tmp_path / "disk", 14) as store:
        assert have(store, range(6)) == list(range(6))
        put(store, range(6, 14))
        assert have(store, range(14)) == list(range(14))
        store.audit()


def test_limits_are_kept_while_the_disk_is_away(tmp_path: Path) -> None:
    """What was set meanwhile holds when it is back."""
    files = FailingFiles()
    store = make_store(tmp_path / "disk", files=files)
    store.limit("a", 16 * STRIDE)
    put(store, range(6))
    files.fail("read", "open")
    while not store.is_bypassed:
        put(store, [50])
        get(store, 50)
    store.limit("a", 2 * STRIDE)
    store.limit("b", 2 * STRIDE)
    files.failing.clear()
    wait_until(store, lambda: not store.is_bypassed)
    assert store.used("a") == 2 * STRIDE
    assert put(store, [7], "b") == [True]
    store.audit()
    store.close(60)
