"""The ring file: what was written is read, oldest lost first; what is torn is never read."""

import stat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.trace.ring import HEADER_BYTES, LEAST_BYTES, RingReader, RingWriter

FIRST = b"the machine"


def read(path: Path) -> list[bytes]:
    """Return what can be read, oldest first, without what begins each segment."""
    reader = RingReader(path)
    try:
        segments = list(reader.segments())
    finally:
        reader.close()
    for segment in segments:
        assert segment[:1] in ([FIRST], [])
    return [payload for segment in reversed(segments) for payload in segment[1:]]


def record(number: int, size: int = 0) -> bytes:
    """Return a record that tells its number and is so long at least."""
    return f"{number}:".encode().ljust(size, b"x")


def test_what_is_written_is_read_in_order(tmp_path: Path) -> None:
    """Over calls, and over a writer that was closed and one that goes on."""
    path = tmp_path / "trace"
    for start in (0, 10):
        writer = RingWriter(path, LEAST_BYTES)
        writer.append([record(start + number) for number in range(5)], FIRST)
        writer.append([record(start + number) for number in range(5, 10)], FIRST)
        writer.close()
    assert read(path) == [record(number) for number in range(20)]


def test_only_its_owner_can_read_it(tmp_path: Path) -> None:
    """Mode 0600, also where a file with a wider one is there; a link is not followed."""
    path = tmp_path / "trace"
    path.touch(0o644)
    RingWriter(path, LEAST_BYTES).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(OSError, match="symbolic"):
        RingWriter(link, LEAST_BYTES)


def test_its_size_never_changes_and_the_newest_stay(tmp_path: Path) -> None:
    """Many laps round; what is left is the end of what was written, without a gap, and most of the room."""
    path = tmp_path / "trace"
    writer = RingWriter(path, LEAST_BYTES)
    size = path.stat().st_size
    written = [record(number, 1000) for number in range(2000)]
    for start in range(0, 2000, 7):
        writer.append(written[start : start + 7], FIRST)
        assert path.stat().st_size == size
    writer.close()
    found = read(path)
    assert found == written[-len(found) :]
    assert len(found) * 1000 > (size - HEADER_BYTES) * 0.7


def test_a_file_of_another_size_or_kind_begins_anew(tmp_path: Path) -> None:
    """The trace is worth nothing to another setting, and no file is trusted for its name."""
    path = tmp_path / "trace"
    for content in (b"", b"something else" * 10_000):
        path.write_bytes(content)
        writer = RingWriter(path, LEAST_BYTES)
        writer.append([record(1)], FIRST)
        writer.close()
        assert read(path) == [record(1)]
    writer = RingWriter(path, 2 * LEAST_BYTES)
    writer.append([record(2)], FIRST)
    writer.close()
    assert read(path) == [record(2)]


@pytest.mark.parametrize("content", [b"", b"short", b"x" * 10_000, b"TGTRACE1" + b"\xff" * 5000])
def test_no_trace_is_an_error(tmp_path: Path, content: bytes) -> None:
    """A reader says so, whatever is in the file."""
    path = tmp_path / "trace"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="no trace"):
        RingReader(path)


def test_a_record_that_fits_no_segment_is_refused(tmp_path: Path) -> None:
    """And the next ones are written."""
    writer = RingWriter(tmp_path / "trace", LEAST_BYTES)
    with pytest.raises(ValueError, match="does not fit"):
        writer.append([b"x" * (writer.longest + 1)], FIRST)
    writer.append([record(1)], FIRST)
    writer.close()
    assert read(tmp_path / "trace") == [record(1)]


SIZES = st.lists(st.integers(0, 9000), min_size=1, max_size=60)


@settings(max_examples=60, deadline=None)
@given(sizes=SIZES, data=st.data())
def test_a_crash_at_any_byte_loses_the_end_alone(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], data: st.DataObject
) -> None:
    """A write that is cut off anywhere leaves what was there, and as much of it as is whole; a new core goes on."""
    path = tmp_path_factory.mktemp("ring") / "trace"
    written = [record(number, size) for number, size in enumerate(sizes)]
    writer = RingWriter(path, LEAST_BYTES)
    half = data.draw(st.integers(0, len(written)), label="written before")
    writer.append(written[:half], FIRST)
    before = path.read_bytes()
    writer.append(written[half:], FIRST)
    writer.close()
    after = path.read_bytes()
    places = [place for place in range(len(after)) if before[place] != after[place]]
    cut = data.draw(st.integers(0, len(places)), label="bytes that reached the file")
    torn = bytearray(before)
    for place in places[:cut]:
        torn[place] = after[place]
    path.write_bytes(torn)
    numbers = [written.index(payload) for payload in read(path)]
    assert numbers == sorted(numbers)
    if sum(sizes) < LEAST_BYTES // 2:  # nothing was overwritten
        assert numbers == list(range(len(numbers)))
        assert len(numbers) >= half
    again = RingWriter(path, LEAST_BYTES)
    again.append([b"again"], FIRST)
    again.close()
    assert read(path)[-1] == b"again"


@settings(max_examples=60, deadline=None)
@given(sizes=SIZES, data=st.data())
def test_no_damage_makes_a_record(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], data: st.DataObject
) -> None:
    """Whatever bytes are changed, what is read was written, and comes in the order in which it was written."""
    path = tmp_path_factory.mktemp("ring") / "trace"
    writer = RingWriter(path, LEAST_BYTES)
    written = [record(number, size) for number, size in enumerate(sizes)]
    writer.append(written, FIRST)
    writer.close()
    damaged = bytearray(path.read_bytes())
    for place in data.draw(st.lists(st.integers(HEADER_BYTES, len(damaged) - 1), max_size=20)):
        damaged[place] ^= data.draw(st.integers(1, 255))
    path.write_bytes(damaged)
    reader = RingReader(path)
    segments = list(reader.segments())
    reader.close()
    numbers = [written.index(one) for segment in reversed(segments) for one in segment if one != FIRST]
    assert numbers == sorted(numbers)


def test_what_is_being_overwritten_is_not_read(tmp_path: Path) -> None:
    """A reader that has found a segment and then reads it late gets nothing of the next lap."""
    path = tmp_path / "trace"
    writer = RingWriter(path, LEAST_BYTES)
    writer.append([record(number, 1000) for number in range(200)], FIRST)
    reader = RingReader(path)
    segments = reader.segments()
    newest = next(segments)
    writer.append([record(number, 1000) for number in range(200, 400)], FIRST)
    late = [payload for segment in segments for payload in segment]
    reader.close()
    writer.close()
    numbers = {int(payload.split(b":")[0]) for payload in [*newest, *late] if payload != FIRST}
    assert all(number < 200 for number in numbers)
