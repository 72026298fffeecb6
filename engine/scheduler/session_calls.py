"""What is asked of sessions from outside between two steps, and what is answered."""

from dataclasses import dataclass
from enum import StrEnum

from engine.request import TenantId


class SessionAction(StrEnum):
    """What may be done to a session."""

    PIN = "pin"
    UNPIN = "unpin"
    PREFETCH = "prefetch"
    ERASE = "erase"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefetch:
    """The next turn of a session is about to come; an unknown session is passed over."""

    tenant: TenantId
    session: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionQuery:
    """List a tenant's sessions, the last used first; answered by number."""

    number: int
    tenant: TenantId
    session: str = ""  # only this one; empty: all
    limit: int
    before: float = 0.0  # last used before this moment, unix seconds; 0: from the newest on


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionChange:
    """Change a session; answered by number, an erasure once the bytes are gone."""

    number: int
    tenant: TenantId
    session: str
    action: SessionAction


SessionCall = Prefetch | SessionQuery | SessionChange


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionView:
    """A session and where its blocks are now. Times are unix seconds."""

    session: str
    num_tokens: int
    device_bytes: int
    host_bytes: int
    disk_bytes: int
    num_turns: int
    created_at: float
    last_used_at: float
    expires_at: float  # 0: it is pinned
    pinned: bool
    active: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionAnswer:
    """The answer to a call: sessions, none where it is unknown."""

    number: int
    sessions: tuple[SessionView, ...]
    num_sessions: int  # of the tenant, in all
