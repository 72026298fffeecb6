"""The counter table, the journal and the meter over both."""

import asyncio
import mmap
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import EngineError
from engine.front.journal import Journal
from engine.front.meter import IdentityTooLongError, Meter
from engine.front.table import Counters, CounterTable, Identity
from engine.protocol import pb
from tests.engine.front.conftest import Run
from tests.engine.front.process import REPOSITORY, wait_for

WRITER = """
import sys
from pathlib import Path
import msgspec
from engine.front.table import Counters, CounterTable, Identity
table = CounterTable(Path(sys.argv[1]))
identity = Identity(request_id="r", tenant="t", project="", key="", session="", model="m", worker_id="w")
slot = table.begin(msgspec.msgpack.encode(identity), Counters())
print("running", flush=True)
count = 0
while True:
    count += 1
    table.update(slot, Counters(completion_tokens=count, prompt_tokens=2 * count, kv_device_byte_seconds=3.0 * count))
"""


def identity(request_id: str = "r-1") -> Identity:
    """Whose request it is."""
    return Identity(request_id=request_id, tenant="t", project="p", key="k", session="s", model="m", worker_id="w")


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    """An empty journal."""
    opened = Journal(tmp_path / "journal.sqlite3")
    yield opened
    opened.close()


COUNTERS = st.builds(
    Counters,
    prompt_tokens=st.integers(0, 2**63),
    completion_tokens=st.integers(0, 2**63),
    kv_device_byte_seconds=st.floats(0, 1e18),
    finish_reason=st.sampled_from(["", "stop", "length", "cancelled", "error"]),
)


@given(COUNTERS)
def test_counters_survive_packing(counters: Counters) -> None:
    """Packed counters unpack to themselves."""
    assert Counters.unpack(counters.pack()) == counters


@given(COUNTERS, st.data())
def test_torn_counters_are_noticed(counters: Counters, data: st.DataObject) -> None:
    """A flipped bit anywhere makes a copy unreadable rather than wrong."""
    raw = bytearray(counters.pack())
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert Counters.unpack(bytes(raw)) is None


def test_table_grows_and_gives_back(tmp_path: Path) -> None:
    """More requests make the file grow; cleared records are taken again; a second opening finds the rest."""
    table = CounterTable(tmp_path / "counters")
    raw = [identity_bytes(f"r-{index}") for index in range(1000)]
    slots = [table.begin(entry, Counters(prompt_tokens=index)) for index, entry in enumerate(raw)]
    assert len(set(slots)) == len(table) == 1000
    for index, slot in enumerate(slots):
        table.update(slot, Counters(prompt_tokens=index, completion_tokens=index))
    for slot in slots[:900]:
        table.clear(slot)
    size = (tmp_path / "counters").stat().st_size
    for slot in [table.begin(raw[0], Counters()) for _ in range(500)]:
        table.clear(slot)
    assert (tmp_path / "counters").stat().st_size == size
    table.close()
    again = CounterTable(tmp_path / "counters")
    left = {orphan.identity.request_id: orphan.counters for orphan in again.orphans()}
    assert left == {f"r-{index}": Counters(prompt_tokens=index, completion_tokens=index) for index in range(900, 1000)}
    again.close()


def identity_bytes(request_id: str) -> bytes:
    """The packed form of an identity."""
    return msgspec.msgpack.encode(identity(request_id))


def test_kill_in_the_middle_of_updates_leaves_whole_counters(tmp_path: Path) -> None:
    """A writer killed at a random instruction leaves counters that belong together."""
    path = tmp_path / "counters"
    for round_number in range(8):
        path.unlink(missing_ok=True)
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], cwd=REPOSITORY, stdout=subprocess.PIPE
        ) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"running\n"
            wait_for(lambda: path.stat().st_size, "the table")
            for _ in range(round_number * 1000):
                pass
            os.kill(writer.pid, signal.SIGKILL)
        table = CounterTable(path)
        (orphan,) = table.orphans()
        assert orphan.counters is not None
        count = orphan.counters.completion_tokens
        assert (orphan.counters.prompt_tokens, orphan.counters.kv_device_byte_seconds) == (2 * count, 3.0 * count)
        table.close()


def test_torn_copy_falls_back_to_the_other(tmp_path: Path) -> None:
    """When a machine crash tore the current copy, the one before it counts."""
    path = tmp_path / "counters"
    table = CounterTable(path)
    slot = table.begin(identity_bytes("r"), Counters(completion_tokens=1))
    table.update(slot, Counters(completion_tokens=2))
    table.close()
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as raw:
        raw[4096 + 128] ^= 0xFF  # the second copy, which is current
    again = CounterTable(path)
    (orphan,) = again.orphans()
    assert orphan.counters == Counters(completion_tokens=1)
    again.close()


def test_foreign_file_is_refused(tmp_path: Path) -> None:
    """A file that is no table is not overwritten."""
    path = tmp_path / "counters"
    path.write_bytes(b"precious" * 1000)
    with pytest.raises(EngineError, match="move it away"):
        CounterTable(path)
    assert path.read_bytes() == b"precious" * 1000


def test_journal_keeps_one_record_an_id(journal: Journal, run: Run) -> None:
    """Records come back in order of their sequence; a second one with the same id is not taken."""

    async def story() -> None:
        journal.start()
        assert all(await asyncio.gather(*(journal.append(f"r{index}", bytes([index])) for index in range(50))))
        assert not await journal.append("r7", b"other")
        entries = await journal.read(0, 1000)
        assert [entry.record for entry in entries] == [bytes([index]) for index in range(50)]
        await journal.ack(entries[29].sequence)
        rest = await journal.read(0, 5)
        assert [entry.record for entry in rest] == [bytes([index]) for index in range(30, 35)]
        await journal.append("new", b"new")
        assert (await journal.read(0, 1000))[-1].sequence > entries[-1].sequence

    run(story())


def test_sequences_are_never_used_again(tmp_path: Path, run: Run) -> None:
    """A journal that was acked empty goes on counting after a restart."""

    async def one(journal: Journal, request_id: str) -> int:
        journal.start()
        await journal.append(request_id, b"")
        (entry,) = await journal.read(0, 10)
        await journal.ack(entry.sequence)
        return entry.sequence

    async def story() -> None:
        sequences = []
        for index in range(3):
            journal = Journal(tmp_path / "journal.sqlite3")
            sequences.append(await one(journal, f"r{index}"))
            journal.close()
        assert sequences == sorted(set(sequences))

    run(story())


def test_journal_waits_for_a_disk_that_refuses(tmp_path: Path, run: Run) -> None:
    """While the file cannot be written nothing is reported as stored; once it can, everything is."""

    async def story() -> None:
        journal = Journal(tmp_path / "journal.sqlite3")
        journal._db.execute("PRAGMA busy_timeout = 0")
        journal.start()
        with sqlite3.connect(tmp_path / "journal.sqlite3", isolation_level=None) as other:
            other.execute("BEGIN EXCLUSIVE")
            stored = journal.append("r", b"record")
            await asyncio.to_thread(wait_for, lambda: journal.failure, "the commit to fail")
            assert not stored.done()
            other.execute("ROLLBACK")
        other.close()
        assert await stored
        assert not journal.failure
        journal.close()

    run(story())


def test_journal_is_its_users_alone(tmp_path: Path, run: Run) -> None:
    """The journal holds secrets: nobody else may read it or the files beside it, also where it was laxer before."""
    path = tmp_path / "journal.sqlite3"
    path.touch()
    path.chmod(0o644)

    def modes() -> list[int]:
        return [file.stat().st_mode & 0o777 for file in tmp_path.glob("journal.sqlite3*")]

    async def story() -> None:
        for _ in range(2):
            journal = Journal(path)
            journal.start()
            await journal.save({"policy": b"one", "share_groups": b"two"})
            assert modes() == [0o600] * 3
            assert (journal.load("policy"), journal.load("share_groups")) == (b"one", b"two")
            journal.close()

    run(story())


def test_broken_journal_is_a_clear_error(tmp_path: Path) -> None:
    """A file that is no database is named."""
    (tmp_path / "journal.sqlite3").write_bytes(b"not a database, not at all" * 100)
    with pytest.raises(EngineError, match=r"journal\.sqlite3"):
        Journal(tmp_path / "journal.sqlite3")


@pytest.mark.parametrize("journaled", [False, True], ids=["before the commit", "after the commit"])
def test_orphans_are_closed_exactly_once(tmp_path: Path, run: Run, journaled: bool) -> None:
    """An end that was journaled and not cleared is not doubled; one that was not journaled is closed."""

    async def story() -> None:
        journal = Journal(tmp_path / "journal.sqlite3")
        meter = Meter(tmp_path, journal)
        ended = meter.begin(identity("ended"), Counters(prompt_tokens=3))
        running = meter.begin(identity("running"), Counters(prompt_tokens=4))
        meter.update(running, Counters(prompt_tokens=4, completion_tokens=9, started_at=1.0, finished_at=2.0))
        counters = Counters(prompt_tokens=3, completion_tokens=5, finish_reason="length")
        if journaled:
            journal.append_now([("ended", pb.UsageRecord(request_id="ended", completion_tokens=5).SerializeToString())])
        meter.update(ended, counters)
        meter.close()
        for _ in range(2):
            again = Meter(tmp_path, journal)
            assert again.in_use == 0
            again.close()
        journal.start()
        records = [pb.UsageRecord.FromString(entry.record) for entry in await journal.read(0, 10)]
        assert {record.request_id: record.completion_tokens for record in records} == {"ended": 5, "running": 9}
        reasons = {record.request_id: record.finish_reason for record in records}
        assert reasons["running"] == pb.FINISH_REASON_ERROR
        assert journaled or reasons["ended"] == pb.FINISH_REASON_LENGTH
        journal.close()

    run(story())


def test_end_is_reported_once_it_is_stored(tmp_path: Path, run: Run) -> None:
    """An end is reported after its commit, when the table has given its record back."""

    async def story() -> None:
        journal = Journal(tmp_path / "journal.sqlite3")
        meter = Meter(tmp_path, journal)
        seen: list[str] = []
        recorded = asyncio.Event()
        meter.watch(recorded.set)
        metered = meter.begin(identity(), Counters())
        journal.start()
        meter.finish(metered, Counters(finish_reason="stop"), lambda: seen.append(f"in use: {meter.in_use}"))
        assert (meter.in_use, seen) == (1, [])
        await recorded.wait()
        assert seen == ["in use: 0"]
        assert len(await journal.read(0, 10)) == 1
        journal.close()
        meter.close()

    run(story())


def test_ids_that_do_not_fit_are_refused(tmp_path: Path, journal: Journal) -> None:
    """Ids that are longer than a record of the table are refused rather than cut."""
    meter = Meter(tmp_path, journal)
    with pytest.raises(IdentityTooLongError, match="bytes"):
        meter.begin(identity("x" * 2000), Counters())
    meter.close()
