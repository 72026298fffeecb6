"""The ring file: the newest records of a trace in a file of fixed size.

    file      header | segment | segment | …
    segment   sequence number, checksum | frame | frame | …           the lowest number is the oldest
    frame     length, checksum | payload

A full segment is followed by the oldest one, which begins again under the next number. A frame's checksum covers its
segment's number, its place and its length, so that nothing of an earlier lap, and nothing that a crash has torn, is
ever taken for a record: a reader goes on to the next segment at the first frame that is not whole. A writer that finds
a file begins a new segment behind the newest, so that what a crashed one has left is never built upon.

One writer at a time; any number of readers, at any time, in any process.
"""

import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

FILE_NAME = "trace"  # in the worker's state folder
_MAGIC = b"TGTRACE1"
_FILE = struct.Struct("<8sQQ")  # magic, bytes of a segment, segments
_SEGMENT = struct.Struct("<QI")  # sequence number, checksum
_FRAME = struct.Struct("<II")  # length, checksum
_PLACE = struct.Struct("<QII")  # sequence number, offset in the segment, length
HEADER_BYTES = 4096
_MOST_SEGMENT_BYTES, _LEAST_SEGMENT_BYTES = 1 << 20, 1 << 16
_SEGMENTS = 64  # as many where the file is large enough
LEAST_BYTES = 4 * _LEAST_SEGMENT_BYTES


class RingWriter:
    """Appends records. Not thread-safe."""

    def __init__(self, path: Path, capacity: int) -> None:
        """Open the file, or make it anew where there is none of this size and version.

        Args:
            path: the file; only its owner can read it.
            capacity: bytes, `LEAST_BYTES` at least.

        Raises:
            OSError: it cannot be written, or the disk has no room for it.
        """
        size = min(_MOST_SEGMENT_BYTES, max(_LEAST_SEGMENT_BYTES, capacity // _SEGMENTS))
        count = max(LEAST_BYTES // _LEAST_SEGMENT_BYTES, capacity // size)
        self._size, self._count = size, count
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.fchmod(self._file, 0o600)
            self._sequence = self._prepare()
        except BaseException:
            os.close(self._file)
            raise
        self._at = size  # of the next frame in the segment; at the end: a new one is due
        self.longest = size - _SEGMENT.size - _FRAME.size  # bytes of a payload

    def append(self, payloads: Sequence[bytes], first: bytes) -> None:
        """Write records down in order, in as few writes as can be; `first` begins every new segment.

        Raises:
            OSError: the disk failed. What was to be written is lost, and a later call goes on in a new segment.
            ValueError: a record is longer than `longest`.
        """
        try:
            start, frames = self._at, bytearray()
            for payload in payloads:
                if len(payload) > self.longest - _FRAME.size - len(first):
                    raise ValueError(f"a record of {len(payload)} bytes does not fit a segment of {self._size}")
                if start + len(frames) + _FRAME.size + len(payload) > self._size:
                    self._write(start, frames)
                    start, frames = self._begin(first)
                frames += _frame(self._sequence, start + len(frames), payload)
            self._write(start, frames)
            self._at = start + len(frames)
        except BaseException:
            self._at = self._size
            raise

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _begin(self, first: bytes) -> tuple[int, bytearray]:
        """Take the oldest segment; its old frames are void once its new number is written."""
        self._sequence += 1
        frames = bytearray(_segment(self._sequence))
        frames += _frame(self._sequence, len(frames), first)
        return 0, frames

    def _write(self, offset: int, data: bytes | bytearray) -> None:
        place = HEADER_BYTES + self._sequence % self._count * self._size + offset
        view = memoryview(data)
        while view:
            written = os.pwrite(self._file, view, place)
            place, view = place + written, view[written:]

    def _prepare(self) -> int:
        """Return the newest segment's number in the file, 0 for a new one."""
        total = HEADER_BYTES + self._count * self._size
        header = _FILE.pack(_MAGIC, self._size, self._count)
        if os.fstat(self._file).st_size == total and os.pread(self._file, len(header), 0) == header:
            return max((sequence for sequence, _ in _segments(self._file, self._size, self._count)), default=0)
        os.ftruncate(self._file, 0)
        os.posix_fallocate(self._file, 0, total)  # a disk that is full later on takes nothing away
        os.pwrite(self._file, header, 0)
        return 0


class RingReader:
    """Reads what is in the file when it is read, newest segment first, each from its beginning."""

    def __init__(self, path: Path) -> None:
        """Open the file.

        Raises:
            OSError: it is not there, or cannot be read.
            ValueError: it is no trace of this version.
        """
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            header = os.pread(self._file, _FILE.size, 0)
            if len(header) < _FILE.size or header[:8] != _MAGIC:
                raise ValueError(f"{path} is no trace of this version")
            _, self._size, self._count = _FILE.unpack(header)
            if not (_LEAST_SEGMENT_BYTES <= self._size <= _MOST_SEGMENT_BYTES and 0 < self._count < 1 << 20):
                raise ValueError(f"{path} has segments of {self._size} bytes: it is no trace of this version")
        except BaseException:
            os.close(self._file)
            raise

    def segments(self) -> Iterator[list[bytes]]:
        """Yield the records of each segment, in order; the newest segment comes first."""
        found = sorted(_segments(self._file, self._size, self._count), reverse=True)
        for sequence, index in found:
            data = os.pread(self._file, self._size, HEADER_BYTES + index * self._size)
            yield list(_frames(data, sequence))

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def _segments(file: int, size: int, count: int) -> Iterable[tuple[int, int]]:
    """Yield the number and the index of each segment that was begun."""
    for index in range(count):
        raw = os.pread(file, _SEGMENT.size, HEADER_BYTES + index * size)
        if len(raw) == _SEGMENT.size:
            sequence, _ = _SEGMENT.unpack(raw)
            if sequence % count == index and sequence > 0 and raw == _segment(sequence):
                yield sequence, index


def _frames(data: bytes, sequence: int) -> Iterator[bytes]:
    """Yield the payloads of a segment until the first frame that is not whole, or not of this lap."""
    if data[: _SEGMENT.size] != _segment(sequence):  # it has begun again since
        return
    at = _SEGMENT.size
    while at + _FRAME.size <= len(data):
        length, checksum = _FRAME.unpack_from(data, at)
        payload = data[at + _FRAME.size : at + _FRAME.size + length]
        if len(payload) < length or checksum != _checksum(sequence, at, payload):
            return
        yield payload
        at += _FRAME.size + length


def _segment(sequence: int) -> bytes:
    return _SEGMENT.pack(sequence, zlib.crc32(_MAGIC + sequence.to_bytes(8, "little")))


def _frame(sequence: int, at: int, payload: bytes) -> bytes:
    return _FRAME.pack(len(payload), _checksum(sequence, at, payload)) + payload


def _checksum(sequence: int, at: int, payload: bytes) -> int:
    return zlib.crc32(payload, zlib.crc32(_PLACE.pack(sequence, at, len(payload))))
