"""The counters of running requests in a memory-mapped file, which outlives a kill -9 of the process that writes it.

    file    header | record | record | ...
    record  state byte | counters A | counters B | identity

A record's identity is written once. Counters go to the copy that is not current, then one store of the state byte makes
it the current one, so that a death between any two instructions leaves either the old counters or the new ones.
"""

import mmap
import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from engine.errors import EngineError
from engine.request import FinishReason

_MAGIC = b"TGCOUNT1"
_HEADER_BYTES = 4096
_RECORD_BYTES = 2048
_GROWTH = 256  # records added at a time
_FREE, _COPY_A, _COPY_B = 0, 1, 2
_COPY_OFFSET = {_COPY_A: 8, _COPY_B: 128}  # within a record
_IDENTITY_OFFSET = 256
_IDENTITY = struct.Struct("<II")  # length, checksum
_COUNTERS = struct.Struct("<QQQQdddddB")
_CHECKSUM = struct.Struct("<I")
_REASONS = ("", *(reason.value for reason in FinishReason))

IDENTITY_MAX_BYTES = _RECORD_BYTES - _IDENTITY_OFFSET - _IDENTITY.size


class Identity(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Whose request it is. Together at most `IDENTITY_MAX_BYTES` in msgpack."""

    request_id: str
    tenant: str
    project: str
    key: str
    session: str
    model: str
    worker_id: str


@dataclass(slots=True, kw_only=True)
class Counters:
    """What a request has used so far. Times are unix seconds.

    While the request runs, `finish_reason` is empty and `finished_at` is the time of the last update.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    num_preemptions: int = 0
    kv_device_byte_seconds: float = 0.0
    queue_seconds: float = 0.0
    ttft_seconds: float = 0.0
    started_at: float = 0.0
    finished_at: float = 0.0
    finish_reason: str = ""

    def pack(self) -> bytes:
        """Return the fixed-size form with its checksum."""
        body = _COUNTERS.pack(
            self.prompt_tokens,
            self.cached_tokens,
            self.completion_tokens,
            self.num_preemptions,
            self.kv_device_byte_seconds,
            self.queue_seconds,
            self.ttft_seconds,
            self.started_at,
            self.finished_at,
            _REASONS.index(self.finish_reason),
        )
        return body + _CHECKSUM.pack(zlib.crc32(body))

    @classmethod
    def unpack(cls, raw: bytes) -> "Counters | None":
        """Return the counters in `raw`, or None when the checksum says that they are not whole."""
        body = raw[: _COUNTERS.size]
        if _CHECKSUM.unpack_from(raw, _COUNTERS.size)[0] != zlib.crc32(body):
            return None
        values = _COUNTERS.unpack(body)
        names = cls.__dataclass_fields__
        return cls(**{**dict(zip(names, values, strict=True)), "finish_reason": _REASONS[values[-1]]})


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """A record that an earlier process left; `counters` is None where a machine crash tore it."""

    slot: int
    identity: Identity
    counters: Counters | None


class CounterTable:
    """Fixed-size records of running requests. One process at a time; the caller holds the state folder's lock."""

    def __init__(self, path: Path) -> None:
        """Open or create the file.

        Raises:
            EngineError: it is not a table, or there is no room for one.
        """
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._map = self._open_map(path)
        except BaseException:
            os.close(self._file)
            raise
        slots = range(self._capacity())
        self._free = [slot for slot in reversed(slots) if self._map[self._offset(slot)] == _FREE]

    def __len__(self) -> int:
        """Return the number of records in use."""
        return self._capacity() - len(self._free)

    def begin(self, identity: bytes, counters: Counters) -> int:
        """Take a record and return its slot; the file grows when all are taken.

        Raises:
            OSError: the disk has no room to grow.
        """
        if not self._free:
            self._grow()
        slot = self._free.pop()
        offset = self._offset(slot)
        self._write(offset + _IDENTITY_OFFSET, _IDENTITY.pack(len(identity), zlib.crc32(identity)) + identity)
        self._write(offset + _COPY_OFFSET[_COPY_A], counters.pack())
        self._map[offset] = _COPY_A
        return slot

    def update(self, slot: int, counters: Counters) -> None:
        """Replace the counters of a record."""
        offset = self._offset(slot)
        target = _COPY_B if self._map[offset] == _COPY_A else _COPY_A
        self._write(offset + _COPY_OFFSET[target], counters.pack())
        self._map[offset] = target

    def clear(self, slot: int) -> None:
        """Give a record back."""
        self._map[self._offset(slot)] = _FREE
        self._free.append(slot)

    def orphans(self) -> Iterator[Orphan]:
        """Yield the records that are in use and readable; one whose identity is torn is given back."""
        for slot in range(self._capacity()):
            offset = self._offset(slot)
            state = self._map[offset]
            if state == _FREE:
                continue
            identity = self._identity(offset)
            if identity is None or state not in _COPY_OFFSET:
                self.clear(slot)
                continue
            yield Orphan(slot=slot, identity=identity, counters=self._counters(offset, state))

    def close(self) -> None:
        """Unmap the file; records stay."""
        self._map.close()
        os.close(self._file)

    def _open_map(self, path: Path) -> mmap.mmap:
        size = os.fstat(self._file).st_size
        if size < _HEADER_BYTES:
            os.posix_fallocate(self._file, 0, _HEADER_BYTES + _GROWTH * _RECORD_BYTES)
            os.pwrite(self._file, _MAGIC, 0)
            size = os.fstat(self._file).st_size
        elif os.pread(self._file, len(_MAGIC), 0) != _MAGIC:
            raise EngineError(f"{path} is not a counter table of this version: move it away and start again")
        return mmap.mmap(self._file, size)

    def _grow(self) -> None:
        # Blocks are allocated before they are mapped: a store to a hole on a full disk would kill the process.
        capacity = self._capacity()
        size = _HEADER_BYTES + (capacity + _GROWTH) * _RECORD_BYTES
        os.posix_fallocate(self._file, 0, size)
        self._map.resize(size)
        self._free.extend(reversed(range(capacity, capacity + _GROWTH)))

    def _capacity(self) -> int:
        return (len(self._map) - _HEADER_BYTES) // _RECORD_BYTES

    def _offset(self, slot: int) -> int:
        return _HEADER_BYTES + slot * _RECORD_BYTES

    def _write(self, offset: int, data: bytes) -> None:
        self._map[offset : offset + len(data)] = data

    def _identity(self, offset: int) -> Identity | None:
        start = offset + _IDENTITY_OFFSET
        length, checksum = _IDENTITY.unpack_from(self._map, start)
        start += _IDENTITY.size
        raw = self._map[start : start + length]
        if length > IDENTITY_MAX_BYTES or zlib.crc32(raw) != checksum:
            return None
        return msgspec.msgpack.decode(raw, type=Identity)

    def _counters(self, offset: int, state: int) -> Counters | None:
        for copy in (state, _COPY_A + _COPY_B - state):
            start = offset + _COPY_OFFSET[copy]
            counters = Counters.unpack(self._map[start : start + _COUNTERS.size + _CHECKSUM.size])
            if counters is not None:
                return counters
        return None
