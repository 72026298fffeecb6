"""What a recorder writes of the requests that a real scheduler serves, and what it never writes."""

import hashlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.request import BeamParams, FinishReason
from engine.scheduler.step_time import StepTimeModel, StepWork
from engine.trace import recorder
from engine.trace.recorder import MeasuredSpeed, Recorder, open_recorder
from engine.trace.records import ALL_OUTPUTS, REFUSED, CoreStarted, Ended, Machine, Speed, Started, Submitted, decode
from engine.trace.ring import FILE_NAME, LEAST_BYTES, RingReader, RingWriter
from tests.engine.front.process import wait_for
from tests.engine.world import BLOCK_BYTES, World

MACHINE = Machine(
    num_blocks=64, block_size=4, block_bytes=BLOCK_BYTES, max_rows=16, max_context=256, max_batched_tokens=32
)


class Kept:
    """A world whose requests are recorded."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.world = World(num_blocks=64, block_size=4)
        self.step_time = StepTimeModel()
        self.recorder = Recorder(
            RingWriter(path, LEAST_BYTES), MACHINE, MeasuredSpeed(self.step_time), clock=lambda: self.world.now
        )
        self.world.scheduler.roster.watcher = self.recorder

    def records(self) -> list[Any]:
        """Stop recording and return what was written."""
        self.recorder.close()
        return read(self.path)


def read(path: Path) -> list[Any]:
    """Return all records, oldest first."""
    reader = RingReader(path)
    segments = list(reader.segments())
    reader.close()
    return [decode(payload) for segment in reversed(segments) for payload in segment]


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    """A recorded world with a tenant."""
    made = Kept(tmp_path / "trace")
    made.world.policy("minnow")
    return made


def of(records: list[Any], kind: type) -> list[Any]:
    """Return the records of a kind."""
    return [record for record in records if isinstance(record, kind)]


def test_a_request_is_three_records(kept: Kept) -> None:
    """When it came and what it asked for; its prompt's blocks; how it ended, and the blocks that it filled after."""
    began = kept.world.now
    one = kept.world.submit("minnow", 10, 7, ignore_eos=True, deadline=began + 60)
    kept.world.run()
    records = kept.records()
    assert [type(record) for record in records] == [CoreStarted, Submitted, Started, Ended]
    core, submitted, started, ended = records
    assert core.machine == MACHINE
    assert (submitted.request, submitted.tenant, submitted.priority) == (one, "minnow", "standard")
    assert (submitted.num_prompt, submitted.max_tokens, submitted.num_outputs) == (10, 7, 1)
    assert submitted.deadline_seconds == pytest.approx(60)
    assert (started.request, len(started.names), started.group) == (one, 2 * 8, "")
    assert (ended.request, ended.index, ended.reason, ended.num_output) == (one, 0, FinishReason.LENGTH, 7)
    assert (ended.first_block, len(ended.names)) == (2, 2 * 8)
    assert submitted.at <= started.at < ended.at


def test_equal_beginnings_have_equal_names_within_a_tenant_alone(kept: Kept) -> None:
    """Two prompts of a tenant share the names of what they share; another tenant's same prompt shares none."""
    kept.world.policy("whale")
    prompt = list(range(1, 13))
    kept.world.submit("minnow", [*prompt, 1, 2], 1)
    kept.world.submit("minnow", [*prompt, 3, 4], 1)
    kept.world.submit("whale", [*prompt, 1, 2], 1)
    kept.world.run()
    names = {record.request: record.names for record in of(kept.records(), Started)}
    one, two, other = names[1], names[2], names[3]
    assert one[:24] == two[:24]
    assert not {other[at : at + 8] for at in range(0, 24, 8)} & {one[at : at + 8] for at in range(0, 24, 8)}


def test_a_registered_prefix_names_its_group(kept: Kept) -> None:
    """The blocks that a share group pays for are told with the group's name, without its secret."""
    kept.world.policy("minnow", share_groups=("bank",))
    kept.world.share("bank", list(range(1, 9)))
    kept.world.submit("minnow", [*range(1, 9), 50, 51, 52], 1)
    kept.world.run()
    (started,) = of(kept.records(), Started)
    assert (started.group, started.num_head) == ("bank", 2)


def test_nothing_of_a_prompt_or_a_secret_is_in_the_file(kept: Kept) -> None:
    """Neither tokens nor namespaces, in any form that the engine has of them, nor a name that they alone would give."""
    prompt = [901, 902, 903, 904] * 5
    namespace = hashlib.sha256(b"secret").digest()
    kept.world.submit("minnow", prompt, 5, namespace=namespace)
    kept.world.run()
    kept.recorder.close()
    data = kept.path.read_bytes()
    assert namespace[:8] not in data
    assert namespace.hex()[:16].encode() not in data
    for width in (2, 3, 4, 8):
        assert b"".join(token.to_bytes(width, "little") for token in prompt[:4]) not in data
    assert b"".join(map(msgspec.msgpack.encode, prompt[:4])) not in data
    unkeyed = hashlib.sha256(b"".join(token.to_bytes(4, "little") for token in prompt[:4])).digest()
    assert unkeyed[:8] not in data


def test_a_refused_request_is_told(kept: Kept) -> None:
    """It came, and never ran."""
    kept.world.submit("minnow", 10, 1000)
    kept.world.run()
    records = kept.records()
    assert [type(record) for record in records] == [CoreStarted, Submitted, Ended]
    assert records[-1].reason == REFUSED


def test_each_output_ends_by_itself_and_a_search_as_a_whole(kept: Kept) -> None:
    """One record an output, each with its own blocks; of a search one for all of its beams."""
    several = kept.world.submit("minnow", 6, 9, n=3, ignore_eos=True)
    searched = kept.world.submit("minnow", 6, 5, n=2, beams=BeamParams(width=3))
    kept.world.run()
    records = kept.records()
    assert {record.request: record.num_outputs for record in of(records, Submitted)} == {several: 3, searched: 3}
    ends = [(record.request, record.index) for record in of(records, Ended)]
    assert sorted(ends) == [(several, 0), (several, 1), (several, 2), (searched, ALL_OUTPUTS)]
    assert len(of(records, Started)) == 2


def test_tokens_cost_no_record(kept: Kept) -> None:
    """A long output is as many records as a short one; preemption and the way back are none."""
    kept.world.submit("minnow", 6, 200, ignore_eos=True)
    for _ in range(20):
        kept.world.step()
    kept.world.policy("minnow", blocks=3)
    kept.world.step()
    kept.world.policy("minnow")
    kept.world.run()
    assert len(kept.records()) == 4


def test_how_fast_the_machine_is_is_told_now_and_then(kept: Kept) -> None:
    """Once the model of step times knows anything, with an end, and not with each."""
    kept.step_time.observe(StepWork(1, 10), 0.01)
    for _ in range(5):
        kept.world.submit("minnow", 6, 2)
        kept.world.run()
    (speed,) = of(kept.records(), Speed)
    assert speed.weights == kept.step_time.weights


def test_a_new_core_goes_on_in_the_same_file(tmp_path: Path) -> None:
    """What the one before it wrote stays, and each is told apart."""
    for _ in range(2):
        kept = Kept(tmp_path / "trace")
        kept.world.policy("minnow")
        kept.world.submit("minnow", 6, 2)
        kept.world.run()
        kept.recorder.close()
    records = read(tmp_path / "trace")
    assert len(of(records, Submitted)) == 2
    assert len({record.core for record in of(records, CoreStarted)}) == 2


def test_a_prompt_longer_than_a_segment_is_told_as_far_as_fits(tmp_path: Path) -> None:
    """And a name that is longer than any is left out, with nothing broken."""
    kept = Kept(tmp_path / "trace")
    kept.world.policy("minnow")
    kept.world.submit("x" * 70_000, 6, 2)
    kept.world.submit("minnow", 6, 2)
    kept.world.run()
    assert [record.tenant for record in of(kept.records(), Submitted)] == ["minnow"]


def test_a_disk_that_fails_costs_records_and_no_more(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged once, and when the disk is well again the trace goes on."""
    caplog.set_level("INFO")
    sick = threading.Event()
    sick.set()
    written: Callable[..., None] = RingWriter.append

    def append(ring: RingWriter, *records: Any) -> None:
        if sick.is_set():
            raise OSError(28, "No space left on device")
        written(ring, *records)

    monkeypatch.setattr(RingWriter, "append", append)
    for _ in range(2):
        kept.world.submit("minnow", 6, 2)
        kept.world.run()
        wait_for(lambda: not kept.recorder.num_waiting, "the writer")
    wait_for(lambda: "trace_not_written" in caplog.text, "the log")
    sick.clear()
    kept.world.submit("minnow", 6, 2)
    kept.world.run()
    assert len(of(kept.records(), Submitted)) == 1
    assert caplog.text.count("trace_not_written") == 1
    assert "trace_written_again" in caplog.text


def test_records_that_wait_are_bounded(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that stands still costs the newest records, not memory without end."""
    monkeypatch.setattr(recorder, "MOST_WAITING", 3)
    still = threading.Event()
    written: Callable[..., None] = RingWriter.append

    def append(ring: RingWriter, *records: Any) -> None:
        still.wait(30)
        written(ring, *records)

    monkeypatch.setattr(RingWriter, "append", append)
    for _ in range(20):
        kept.world.submit("minnow", 6, 2)
        kept.world.run()
    assert kept.recorder.num_waiting <= 3
    still.set()
    assert len(of(kept.records(), Submitted)) < 20


def test_no_room_means_no_trace_and_no_failure(tmp_path: Path) -> None:
    """A worker serves without; 0 bytes turn it off."""
    step_time = MeasuredSpeed(StepTimeModel())
    assert open_recorder(tmp_path, 0, MACHINE, step_time) is None
    (tmp_path / "file").touch()
    assert open_recorder(tmp_path / "file", LEAST_BYTES, MACHINE, step_time) is None
    made = open_recorder(tmp_path / "new", LEAST_BYTES, MACHINE, step_time)
    assert made is not None
    made.close()
    assert (tmp_path / "new" / FILE_NAME).exists()
