"""A trace read back: requests put together from their records, whatever of them is there."""

from pathlib import Path

import pytest

from engine.replay.story import Story, TraceProblem, read_story
from engine.request import FinishReason
from engine.trace.records import (
    ALL_OUTPUTS,
    REFUSED,
    CoreStarted,
    Ended,
    Machine,
    Record,
    Speed,
    Started,
    Submitted,
    encode,
)
from engine.trace.ring import LEAST_BYTES, RingWriter

MACHINE = Machine(num_blocks=64, block_size=16, block_bytes=100, max_rows=16, max_context=4096, max_batched_tokens=128)


def write(path: Path, *records: Record | bytes, core: int = 1, machine: Machine = MACHINE) -> None:
    """Write one core's records."""
    ring = RingWriter(path, LEAST_BYTES)
    payloads = [record if isinstance(record, bytes) else encode(record) for record in records]
    ring.append(payloads, encode(CoreStarted(core, 0.0, machine)))
    ring.close()


def submitted(request: int, at: float, *, num_prompt: int = 40, num_outputs: int = 1) -> Submitted:
    """Return a request's first record."""
    return Submitted(request, at, "minnow", "standard", num_prompt, 50, num_outputs, 0.0)


def names(*values: int) -> bytes:
    """Return blocks' names."""
    return b"".join(value.to_bytes(8, "little") for value in values)


def story(path: Path, since: float = 0.0, most_blocks: int = 10**6) -> Story:
    """Read it."""
    return read_story(path, since, most_blocks)


def test_a_request_is_put_together(tmp_path: Path) -> None:
    """Names become symbols, equal ones equal symbols, of prompts and of outputs."""
    write(
        tmp_path / "trace",
        submitted(7, 1.0),
        submitted(8, 2.0, num_prompt=70),
        Started(7, 1.5, names(11, 12), "", 0),
        Ended(7, 3.0, 0, FinishReason.STOP, 20, 2, names(13)),
        Started(8, 3.5, names(11, 12, 13, 14), "bank", 2),
        Ended(8, 4.0, 0, FinishReason.LENGTH, 5, 4, b""),
        Speed(4.0, (1.0, 2.0, 3.0, 4.0, 5.0)),
    )
    read = story(tmp_path / "trace")
    one, two = read.calls
    assert (one.at, one.num_prompt, one.outputs[0].num_tokens) == (1.0, 40, 20)
    assert [*one.symbols, *one.outputs[0].symbols] == two.symbols[:3]
    assert (two.group, two.num_head) == ("bank", 2)
    assert len({one.own_symbol, two.own_symbol, *two.symbols}) == 6
    assert max(two.symbols) < read.num_symbols
    assert read.speed is not None
    assert (read.machine, read.speed.weights) == (MACHINE, (1.0, 2.0, 3.0, 4.0, 5.0))
    assert (one.num_blocks(16), two.num_blocks(16)) == (4, 5)


def test_what_came_before_is_left_out_with_all_of_its_records(tmp_path: Path) -> None:
    """A request counts by its arrival; records of one whose beginning is not there are passed over."""
    write(
        tmp_path / "trace",
        Ended(6, 0.5, 0, FinishReason.STOP, 20, 2, b""),
        submitted(7, 1.0),
        submitted(8, 2.0),
        Started(7, 2.5, names(1, 2), "", 0),
        Ended(7, 3.0, 0, FinishReason.STOP, 20, 2, b""),
    )
    (call,) = story(tmp_path / "trace", since=1.5).calls
    assert call.at == 2.0


def test_outputs_go_on_until_each_has_ended(tmp_path: Path) -> None:
    """One of several may be open; a search tells of all its beams at once."""
    write(
        tmp_path / "trace",
        submitted(7, 1.0, num_outputs=3),
        Started(7, 1.5, names(1, 2), "", 0),
        Ended(7, 3.0, 1, FinishReason.STOP, 20, 2, b""),
        submitted(8, 2.0, num_outputs=2),
        Started(8, 2.5, b"", "", 0),
        Ended(8, 3.0, ALL_OUTPUTS, FinishReason.LENGTH, 9, 2, b""),
    )
    several, searched = story(tmp_path / "trace").calls
    assert [several.outputs[index].num_tokens for index in range(3)] == [None, 20, None]
    assert [searched.outputs[index].num_tokens for index in range(2)] == [9, 9]


def test_who_never_ran_gave_up_or_was_refused(tmp_path: Path) -> None:
    """Only a client that left has a patience."""
    write(
        tmp_path / "trace",
        submitted(7, 1.0),
        submitted(8, 2.0),
        Ended(7, 4.0, 0, FinishReason.CANCELLED, 0, 2, b""),
        Ended(8, 4.0, 0, REFUSED, 0, 2, b""),
    )
    left, refused = story(tmp_path / "trace").calls
    assert (left.gave_up_after, refused.gave_up_after) == (3.0, None)
    assert not left.outputs
    assert not refused.outputs


def test_a_new_core_has_requests_of_its_own(tmp_path: Path) -> None:
    """Numbers begin again; what the old one left open has ended with it."""
    write(tmp_path / "trace", submitted(1, 1.0), Started(1, 1.5, names(1, 2), "", 0))
    write(tmp_path / "trace", submitted(1, 5.0), Started(1, 5.5, names(3, 4), "", 0), core=2)
    write(tmp_path / "trace", Ended(1, 6.0, 0, FinishReason.STOP, 7, 2, b""), core=2)
    old, new = story(tmp_path / "trace").calls
    assert (old.outputs[0].num_tokens, new.outputs[0].num_tokens) == (0, 7)


def test_blocks_of_another_size_are_another_story(tmp_path: Path) -> None:
    """A worker that came back with other settings replays what has come since."""
    write(tmp_path / "trace", submitted(1, 1.0))
    other = Machine(
        num_blocks=64, block_size=32, block_bytes=200, max_rows=16, max_context=4096, max_batched_tokens=128
    )
    write(tmp_path / "trace", submitted(1, 5.0), core=2, machine=other)
    read = story(tmp_path / "trace")
    assert ([call.at for call in read.calls], read.machine.block_size) == ([5.0], 32)


def test_a_record_that_is_not_known_is_passed_over(tmp_path: Path) -> None:
    """A worker of another version has written it."""
    write(tmp_path / "trace", submitted(1, 1.0), b"\xc1", encode(CoreStarted(1, 0.0, MACHINE))[:-3], submitted(2, 2.0))
    assert len(story(tmp_path / "trace").calls) == 2


def test_a_long_trace_is_read_from_its_end(tmp_path: Path) -> None:
    """Segments that are not needed are not read."""
    records: list[Record] = []
    for number in range(4000):
        records += [
            submitted(number, float(number), num_prompt=160),
            Started(number, number + 0.5, names(*range(9)), "", 0),
        ]
    write(tmp_path / "trace", *records)
    everything = story(tmp_path / "trace")
    some = story(tmp_path / "trace", most_blocks=100)
    assert some.calls[-1].at == everything.calls[-1].at == 3999.0
    assert 10 <= len(some.calls) < len(everything.calls)


@pytest.mark.parametrize(("content", "found"), [(None, "keeps no trace"), (b"x" * 9000, "cannot be read")])
def test_why_there_is_nothing_to_replay(tmp_path: Path, content: bytes | None, found: str) -> None:
    """No file, no trace, no request: each says so."""
    path = tmp_path / "trace"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(TraceProblem, match=found):
        story(path)
    path.unlink(missing_ok=True)
    write(path, Speed(1.0, (1.0,) * 5))
    with pytest.raises(TraceProblem, match="No request"):
        story(path)
