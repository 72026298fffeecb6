"""Sessions of an earlier process come back from disk, tenant by tenant and bit by bit, once a policy lets it be."""

import logging
from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

from engine.memory.sessions import Sessions
from engine.memory.sessions_record import Kept, from_record
from engine.request import TenantId

_RETRY_SECONDS = 1.0
_SESSIONS_A_STEP = 16  # read, and then added: each has some hundred keys

log = logging.getLogger(__name__)


class Records(Protocol):
    """Where records of sessions are kept."""

    def sessions(self, owner: TenantId) -> list[tuple[str, bytes]] | None:
        """Return the records of an owner's sessions; None while they cannot be read."""
        ...


@dataclass(slots=True)
class _Tenant:
    name: TenantId
    records: list[tuple[str, bytes]]
    kept: list[Kept] = field(default_factory=list)  # read, the last used one last once all are


class Restoring:
    """Reads records and adds their sessions to the registry."""

    def __init__(self, sessions: Sessions, records: Records) -> None:
        self._sessions = sessions
        self._records = records
        self._begun: set[TenantId] = set()  # whose sessions are back, or on their way
        self._unread: dict[TenantId, None] = {}  # whose records could not be read yet
        self._retry_at = 0.0
        self._tenants: deque[_Tenant] = deque()

    @property
    def is_busy(self) -> bool:
        """Whether sessions are on their way."""
        return bool(self._tenants)

    def has_begun(self, tenant: TenantId) -> bool:
        """Say whether all sessions of a tenant are back, or on their way."""
        return tenant in self._begun

    def has(self, tenant: TenantId) -> bool:
        """Say whether sessions of a tenant are on their way."""
        return any(one.name == tenant for one in self._tenants)

    def begin(self, tenant: TenantId) -> None:
        """Bring a tenant's sessions back, once in the life of its policy."""
        if tenant in self._begun:
            return
        records = self._records.sessions(tenant)
        if records is None:
            self._unread[tenant] = None
            return
        self._unread.pop(tenant, None)
        self._begun.add(tenant)
        if records:
            self._tenants.append(_Tenant(tenant, list(records)))

    def forget(self, tenant: TenantId) -> None:
        """Leave a tenant's sessions where they are, or gone."""
        self._begun.discard(tenant)
        self._unread.pop(tenant, None)
        self._tenants = deque(one for one in self._tenants if one.name != tenant)

    def advance(self, now: float) -> None:
        """Go on for a step; `now` is in unix seconds."""
        if self._unread and now >= self._retry_at:
            self._retry_at = now + _RETRY_SECONDS
            for tenant in list(self._unread):
                self.begin(tenant)
        if not self._tenants:
            return
        one = self._tenants[0]
        for _ in range(_SESSIONS_A_STEP):
            if one.records:
                self._read(one, *one.records.pop())
                if not one.records:
                    one.kept.sort(key=lambda kept: kept.session.last_used_at)
            elif one.kept:
                kept = one.kept.pop()  # the last used one first: each next one has been used before it
                self._sessions.restore(kept.session, kept.keys, kept.strays)
            else:
                self._tenants.popleft()
                return

    def _read(self, one: _Tenant, name: str, record: bytes) -> None:
        try:
            one.kept.append(from_record(one.name, name, record))
        except ValueError as error:
            log.warning("session_record_ignored", extra={"tenant": one.name, "error": str(error)})
