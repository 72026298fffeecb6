"""What was erased is in no byte of any file; what was not erased stays."""

from pathlib import Path

import pytest

from engine.disk import volume
from engine.disk.events import Erased
from engine.disk.extents import Buffer
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


def texts(*numbers: int) -> list[bytes]:
    """Return pieces of blocks to look for, whatever part of them is left."""
    return [content(key(number))[place : place + 64] for number in numbers for place in (0, 2000, 4900)]


def test_dropped_blocks_are_overwritten(tmp_path: Path) -> None:
    """When the event comes, and not merely forgotten; their neighbours stay."""
    with opened(tmp_path / "disk") as store:
        put(store, range(6))
        assert holding(tmp_path / "disk", *texts(1, 3)) == ["slabs-000000"]
        ticket = store.drop([key(1), key(3)])
        assert key(1) not in store
        assert store.pending_erasures == 1
        erased(store, ticket)
        assert store.pending_erasures == 0
        assert holding(tmp_path / "disk", *texts(1, 3)) == []
        assert [get(store, number) for number in range(6)] == [True, False, True, False, True, True]
        store.audit()


def test_a_forgotten_owner_leaves_nothing(tmp_path: Path) -> None:
    """Neither blocks nor records, nor its name; another owner's stay."""
    with opened(tmp_path / "disk") as store:
        store.limit("the-erased-one", 16 * STRIDE)
        put(store, range(4), "the-erased-one")
        put(store, range(4, 8), "b")
        assert store.put_session("the-erased-one", "planted-chat", b"planted record" * 500)
        assert store.put_session("b", "kept-chat", b"kept record")
        ticket = store.forget("the-erased-one")
        assert store.used("the-erased-one") == 0
        erased(store, ticket)
        patterns = (*texts(0, 1, 2, 3), b"planted", b"the-erased-one", key(0), key(1))
        assert holding(tmp_path / "disk", *patterns) == []
        assert all(get(store, number) for number in range(4, 8))
        assert store.owners() == ["b"]
        assert not store.write(key(0), "the-erased-one", memoryview(content(key(0))))
    assert holding(tmp_path / "disk", *patterns) == []
    with opened(tmp_path / "disk") as store:
        assert store.sessions("b") == [("kept-chat", b"kept record")]


def test_bytes_of_blocks_that_were_given_up_before_are_erased_too(tmp_path: Path) -> None:
    """A block that had to make room is in no index, but its bytes lay on in a slot that nobody has used since."""
    with opened(tmp_path / "disk") as store:
        put(store, range(8))
        store.limit("a", 2 * STRIDE)
        wait_until(store, lambda: not store.is_busy)
        assert holding(tmp_path / "disk", *texts(0)) != []
        erased(store, store.drop([key(0), key(1)]))
        assert holding(tmp_path / "disk", *texts(0, 1)) == []
        assert holding(tmp_path / "disk", *texts(2)) != []
        erased(store, store.forget("a"))
        assert holding(tmp_path / "disk", *texts(*range(8))) == []
        store.audit()


def test_bytes_that_were_given_up_before_a_restart_are_erased(tmp_path: Path) -> None:
    """After a clean end the slots are known in which something is left; it is overwritten without being asked."""
    with opened(tmp_path / "disk") as store:
        put(store, range(8))
        store.limit("a", 2 * STRIDE)
    assert holding(tmp_path / "disk", *texts(0)) != []
    with opened(tmp_path / "disk") as store:
        erased(store, store.forget("a"))
        assert holding(tmp_path / "disk", *texts(*range(8))) == []


def test_a_block_that_is_being_written_is_erased_when_it_is_there(tmp_path: Path) -> None:
    """It never becomes readable, and the event waits for it."""
    files = FailingFiles()
    with opened(tmp_path / "disk", files=files) as store:
        put(store, range(2))
        files.hold("sync")
        assert store.write(key(5), "a", memoryview(content(key(5))))
        ticket = store.drop([key(5)])
        assert store.used("a") == 2 * STRIDE
        assert not [event for event in store.poll() if isinstance(event, Erased)]
        files.release()
        erased(store, ticket)
        assert key(5) not in store
        assert holding(tmp_path / "disk", *texts(5)) == []
        store.audit()


def test_a_write_that_failed_leaves_nothing_behind(tmp_path: Path) -> None:
    """What it had written before is overwritten, and whoever erases it waits for that."""
    files = FailingFiles()
    with opened(tmp_path / "disk", files=files) as store:
        put(store, [0])
        files.fail("sync")
        assert put(store, [1]) == [False]
        files.failing.clear()
        erased(store, store.drop([key(1)]))
        assert holding(tmp_path / "disk", *texts(1)) == []
        store.audit()


def test_a_slot_that_cannot_be_overwritten_is_tried_again(tmp_path: Path) -> None:
    """Until then the erasure is not over, and the slot holds nothing else."""
    files = FailingFiles()
    with opened(tmp_path / "disk", files=files) as store:
        put(store, range(3))
        files.fail("write")
        ticket = store.drop([key(0)])
        wait_until(store, lambda: store.stats().errors)
        assert store.pending_erasures == 1
        files.failing.clear()
        erased(store, ticket)
        assert holding(tmp_path / "disk", *texts(0)) == []
        store.audit()


def test_an_owner_that_may_keep_nothing_has_nothing(tmp_path: Path) -> None:
    """A ceiling of zero erases, records too; so does a new secret, and having one no more."""
    with opened(tmp_path / "disk") as store:
        for number, change in enumerate(((0, b""), (16 * STRIDE, b"s" * 32))):
            store.limit("a", 16 * STRIDE)
            put(store, [number])
            store.put_session("a", "chat", b"planted record")
            store.limit("a", *change)
            assert key(number) not in store
            assert store.sessions("a") == []
            wait_until(store, lambda: not store.is_busy)
            assert holding(tmp_path / "disk", *texts(number), b"planted") == []
        assert store.put_session("a", "chat", b"record")
        store.audit()


def test_sessions_survive_a_restart(tmp_path: Path) -> None:
    """The last record of each, with a secret and without."""
    with opened(tmp_path / "disk") as store:
        store.limit("b", 16 * STRIDE, b"s" * 32)
        for owner in ("a", "b"):
            for text in (b"first", b"second"):
                assert store.put_session(owner, "chat 1", text)
            store.put_session(owner, "chät 2", b"")
            store.put_session(owner, "chat 3", b"dropped")
            store.drop_session(owner, "chat 3")
    assert holding(tmp_path / "disk", b"dropped") == []
    store = make_store(tmp_path / "disk")
    assert store.owners() == ["a", "b"]
    assert store.sessions("a") == []
    store.limit("a", 16 * STRIDE)
    store.limit("b", 16 * STRIDE, b"s" * 32)
    for owner in ("a", "b"):
        assert sorted(store.sessions(owner)) == [("chat 1", b"second"), ("chät 2", b"")]
    store.close(DEADLINE)


@pytest.mark.parametrize("secret", [b"", b"s" * 32])
def test_a_dropped_session_leaves_nothing(tmp_path: Path, secret: bytes) -> None:
    """No version of its record, short or long; the others stay."""
    with opened(tmp_path / "disk") as store:
        store.limit("a", 16 * STRIDE, secret)
        store.put_session("a", "kept", b"kept record")
        for size in (1, 50, 5000):
            store.put_session("a", "planted-chat", b"planted record" * size)
        wait_until(store, lambda: not store.is_busy)
        if not secret:
            assert holding(tmp_path / "disk", b"planted record", b"planted-chat") != []
        erased(store, store.drop_session("a", "planted-chat"))
        assert holding(tmp_path / "disk", b"planted record", b"planted-chat") == []
        assert store.sessions("a") == [("kept", b"kept record")]


def test_what_is_not_there_is_erased_at_once(tmp_path: Path) -> None:
    """Each call has its event, with a ticket of its own."""
    with opened(tmp_path / "disk") as store:
        tickets = [store.drop([]), store.drop([key(1)]), store.forget("nobody"), store.drop_session("nobody", "chat")]
        assert len(set(tickets)) == 4
        erased(store, *tickets)


def test_bytes_that_are_being_overwritten_by_another_block(tmp_path: Path) -> None:
    """The erasure of what was there before is over when the other block has taken its place, and not before."""
    files = FailingFiles()
    with opened(tmp_path / "disk", files=files) as store:
        store.limit("b", STRIDE)
        put(store, [3], "b")
        files.hold("write")
        assert store.write(key(4), "b", memoryview(content(key(4))))
        wait_until(store, lambda: files.num_held > 0)
        tickets = [store.drop([key(3)]), store.forget("nobody")]
        events = wait_until(store, lambda: True)
        assert [event.ticket for event in events if isinstance(event, Erased)] == tickets[1:]
        assert holding(tmp_path / "disk", *texts(3)) != []
        files.release()
        erased(store, tickets[0])
        assert holding(tmp_path / "disk", *texts(3)) == []
        assert get(store, 4)
        store.audit()


def test_threads_that_wait_keep_nothing_of_what_they_wrote_and_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An erased block is not in their buffers either."""
    buffers: list[Buffer] = []

    class Known(Buffer):
        def __init__(self, stride: int) -> None:
            super().__init__(stride)
            buffers.append(self)

    monkeypatch.setattr(volume, "Buffer", Known)
    with opened(tmp_path / "disk") as store:
        put(store, range(8))
        assert all(get(store, number) for number in range(8))
        assert len(buffers) > 2
        wait_until(store, lambda: not any(any(buffer.memory) for buffer in buffers))
