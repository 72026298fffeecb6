"""Sessions as they are kept on disk, beside their blocks: one record each, to be read by the next process."""

import msgspec

from engine.memory.eviction.base import BlockKey
from engine.memory.sessions import Session
from engine.request import TenantId

_KEY_BYTES = 32


class _Record(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    keys: bytes  # one after the other
    num_head: int
    strays: bytes
    num_turns: int
    created_at: float
    last_used_at: float
    expires_at: float
    seconds: float
    pinned: bool


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Record).decode


class Kept(msgspec.Struct, frozen=True):
    """A session of an earlier process, and the keys that it had."""

    session: Session
    keys: list[BlockKey]
    strays: list[BlockKey]


def to_record(session: Session) -> bytes:
    """Return a session's record."""
    return _encode(
        _Record(
            keys=b"".join(session.keys),
            num_head=session.num_head,
            strays=b"".join(session.strays),
            num_turns=session.num_turns,
            created_at=session.created_at,
            last_used_at=session.last_used_at,
            expires_at=session.expires_at,
            seconds=session.seconds,
            pinned=session.pinned,
        )
    )


def from_record(tenant: TenantId, name: str, data: bytes) -> Kept:
    """Return the session that a record is of.

    Raises:
        ValueError: it is none.
    """
    try:
        record = _decode(data)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error
    session = Session(tenant, name, record.created_at)
    session.num_head = record.num_head
    session.num_turns = record.num_turns
    session.last_used_at = record.last_used_at
    session.expires_at = record.expires_at
    session.seconds = record.seconds
    session.pinned = record.pinned
    return Kept(session, _split(record.keys), _split(record.strays))


def _split(keys: bytes) -> list[BlockKey]:
    if len(keys) % _KEY_BYTES:
        raise ValueError(f"{len(keys)} bytes are not keys of {_KEY_BYTES}")
    return [BlockKey(keys[start : start + _KEY_BYTES]) for start in range(0, len(keys), _KEY_BYTES)]
