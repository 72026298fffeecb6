"""The realtime sockets of one web process: how many there may be, and whether their callers still may.

A caller is checked when its socket opens, at once when a NOTIFY says that its key or its tenant has changed, and every
RECHECK_SECONDS besides: a key may expire, a member may leave, and a notification may be lost.
"""

import asyncio
import math
from collections import Counter
from dataclasses import dataclass
from typing import Protocol

import structlog

from gateway.api.errors import Overloaded, RateLimited
from gateway.realtime.room import Room
from tenants.contracts import KeyGrant

RECHECK_SECONDS = 10.0
STEP_SECONDS = 0.05  # the sockets are checked a few at a time, so that no stream waits for all of them

_log = structlog.get_logger("gateway.realtime")


class Checked(Protocol):
    """A socket whose caller is checked while it is open."""

    async def recheck(self) -> None:
        """Close it, if its caller may no longer have it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Most:
    """How many sockets may be open in one process: all, those of one tenant, those of one key."""

    process: int
    tenant: int
    key: int

    @classmethod
    def of(cls, process: int) -> "Most":
        """Share a process's sockets out, so that neither a tenant nor a key can take all."""
        return cls(process=process, tenant=max(1, process * 3 // 4), key=max(1, process // 2))


class Sockets:
    """Owned by the web process.

    Args:
        most: how many there may be.
        slow_seconds: that an event may wait for its socket's reader.
    """

    def __init__(self, most: Most, slow_seconds: float) -> None:
        self._most = most
        self.slow_seconds = slow_seconds
        self.room = Room()
        self._held: dict[Checked, tuple[str, str]] = {}  # tenant and key of each
        self._tenants: Counter[str] = Counter()
        self._keys: Counter[str] = Counter()
        self._checks: dict[Checked, asyncio.Task[None]] = {}  # one a socket, so that a slow one holds up no other
        self._again: set[Checked] = set()
        self._walk: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._held)

    def start(self) -> None:
        """Begin to check."""
        self._walk = asyncio.create_task(self._check_by_and_by(), name="sockets")

    async def stop(self) -> None:
        """Check no more."""
        tasks = [task for task in (self._walk, *self._checks.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def enter(self, socket: Checked, grant: KeyGrant) -> None:
        """Count a socket that is about to open.

        Raises:
            Overloaded: this process has all that it may have.
            RateLimited: its tenant or its key has.
        """
        most, tenant, key = self._most, grant.tenant_id, grant.key_id
        if len(self._held) >= most.process:
            raise Overloaded(
                f"{most.process} websockets are open here, which is all that one process holds. Dial again."
            )
        if self._tenants[tenant] >= most.tenant:
            raise too_many(most.tenant, "your tenant")
        if key and self._keys[key] >= most.key:
            raise too_many(most.key, "this API key")
        self._held[socket] = (tenant, key)
        self._tenants[tenant] += 1
        self._keys[key] += 1

    def leave(self, socket: Checked) -> None:
        """Forget a socket, if it was counted."""
        held = self._held.pop(socket, None)
        if held is not None:
            for counts, name in zip((self._tenants, self._keys), held, strict=True):
                counts[name] -= 1
                if not counts[name]:
                    del counts[name]

    def changed(self, payload: str) -> None:
        """Take a notification of `tollgate_keys`: check the sockets of that key or tenant at once."""
        kind, _, value = payload.partition(":")
        for socket, (tenant, key) in list(self._held.items()):
            if value == (key if kind == "key" else tenant):
                self._again.add(socket)
                self._begin_check(socket)

    async def _check_by_and_by(self) -> None:
        while True:
            sockets = list(self._held)
            step = math.ceil(len(sockets) * STEP_SECONDS / RECHECK_SECONDS) or 1
            for number, socket in enumerate(sockets):
                if number % step == 0:
                    await asyncio.sleep(STEP_SECONDS)
                if socket in self._held:
                    self._begin_check(socket)
            await asyncio.sleep(max(STEP_SECONDS, RECHECK_SECONDS - len(sockets) / step * STEP_SECONDS))

    def _begin_check(self, socket: Checked) -> None:
        if socket not in self._checks:
            task = self._checks[socket] = asyncio.create_task(self._check(socket))
            task.add_done_callback(lambda _: self._checks.pop(socket, None))

    async def _check(self, socket: Checked) -> None:
        is_due = True
        while is_due:
            self._again.discard(socket)
            try:
                await socket.recheck()
            except Exception:  # noqa: BLE001  # a defect with one socket must not end the checks of all others
                _log.exception("recheck_failed")
            is_due = socket in self._again  # it was told of a change while it was checked


def too_many(most: int, whose: str) -> RateLimited:
    """Return the refusal of one socket more than `whose` may have."""
    error = RateLimited(
        f"{most} websockets of {whose} are open in this process, which is the limit: close some, or run several "
        "responses on one",
        wait_seconds=1.0,
    )
    error.error_code = "too_many_connections"
    return error
