"""Who calls: API keys, held by digest so that a request with a known key asks nobody.

known        served from memory; older than REFRESH_SECONDS: looked up again in the background, for the next one
told stale   (a NOTIFY may have been missed) looked up before it serves; with Postgres away it goes on
told changed forgotten; with Postgres away the caller gets 503, because the change may have been a revocation
unknown      looked up once for all who wait, and remembered for NEGATIVE_SECONDS if there is no such key
"""

import asyncio
import ipaddress
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

import msgspec
import structlog

from gateway.api.errors import Forbidden, InvalidKey, ModelNotFound, Overloaded
from gateway.reads import StoreAway
from tenants.contracts import KeyGrant, PolicyView
from tenants.keys import key_digest, parse_key

MAX_KEYS = 50_000
MAX_UNKNOWN = 10_000
MAX_LOOKUPS = 64  # at once; a flood of made-up keys must not queue without end
REFRESH_SECONDS = 60.0
NEGATIVE_SECONDS = 10.0
STORE_AWAY_SECONDS = 2.0  # Retry-After

_log = structlog.get_logger("gateway.auth")


@dataclass(slots=True)
class _Entry:
    grant: KeyGrant
    checked_at: float  # monotonic
    stale: bool = False


@dataclass(slots=True)
class KeyCache:
    """Grants of the keys in use.

    Args:
        lookup: returns the grant of a digest or None; raises StoreAway.
        pepper: HMAC key of the digests.
    """

    lookup: Callable[[str], Awaitable[KeyGrant | None]]
    pepper: str
    _known: OrderedDict[str, _Entry] = field(default_factory=OrderedDict)
    _unknown: OrderedDict[str, float] = field(default_factory=OrderedDict)
    _lookups: dict[str, asyncio.Task[KeyGrant | None]] = field(default_factory=dict)
    _changes: int = 0  # of what was told about keys; a lookup that began before one is not kept

    async def grant(self, raw: str) -> KeyGrant:
        """Return what the key may do.

        Raises:
            InvalidKey: malformed, unknown or revoked.
            Overloaded: it isn't known here and Postgres can't be asked.
        """
        parsed = parse_key(raw)
        if parsed is None:
            raise InvalidKey("Incorrect API key provided. Keys begin with tg_live_; create one in the console.")
        if parsed.kind != "live":
            raise InvalidKey("A management key can't generate: use an API key, which begins with tg_live_.")
        digest = key_digest(raw, self.pepper)
        entry = self._known.get(digest)
        if entry is None:
            return await self._first(digest)
        self._known.move_to_end(digest)
        if entry.stale:
            return await self._again(digest, entry)
        if time.monotonic() - entry.checked_at > REFRESH_SECONDS and len(self._lookups) < MAX_LOOKUPS:
            self._start(digest)
        return entry.grant

    def forget(self, payload: str) -> None:
        """Take a notification of `tollgate_keys`: drop what is held about a key or a tenant."""
        kind, _, value = payload.partition(":")
        self._changes += 1
        self._unknown.clear()
        for digest, entry in list(self._known.items()):
            if value == (entry.grant.key_id if kind == "key" else entry.grant.tenant_id):
                del self._known[digest]

    def doubt_all(self) -> None:
        """Look every key up again before it serves: notifications may have been missed."""
        self._changes += 1
        self._unknown.clear()
        for entry in self._known.values():
            entry.stale = True

    def take_policies(self, policies: Iterable[tuple[str, PolicyView]]) -> None:
        """Put changed policies into the grants of their tenants."""
        changed = dict(policies)
        for entry in self._known.values():
            policy = changed.get(entry.grant.tenant_id)
            if policy is not None and policy.version > entry.grant.policy.version:
                entry.grant = msgspec.structs.replace(entry.grant, policy=policy)

    async def close(self) -> None:
        """End the lookups under way."""
        tasks = list(self._lookups.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _first(self, digest: str) -> KeyGrant:
        if self._unknown.get(digest, 0.0) > time.monotonic():
            raise _unknown_key()
        if digest not in self._lookups and len(self._lookups) >= MAX_LOOKUPS:
            raise Overloaded("Too many new keys are being checked. Try again.")
        try:
            grant = await asyncio.shield(self._start(digest))
        except StoreAway as error:
            raise Overloaded(
                "The key can't be checked just now. Try again.", wait_seconds=STORE_AWAY_SECONDS
            ) from error
        if grant is None:
            raise _unknown_key()
        return grant

    async def _again(self, digest: str, entry: _Entry) -> KeyGrant:
        try:
            grant = await asyncio.shield(self._start(digest))
        except StoreAway:
            return entry.grant
        if grant is None:
            raise _unknown_key()
        return grant

    def _start(self, digest: str) -> asyncio.Task[KeyGrant | None]:
        task = self._lookups.get(digest)
        if task is None:
            task = self._lookups[digest] = asyncio.create_task(self._look_up(digest))
            task.add_done_callback(lambda done: self._ended(digest, done))
        return task

    def _ended(self, digest: str, task: asyncio.Task[KeyGrant | None]) -> None:
        self._lookups.pop(digest, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.warning("key_lookup_failed", reason=str(error))

    async def _look_up(self, digest: str) -> KeyGrant | None:
        while True:
            changes = self._changes
            grant = await self.lookup(digest)
            if changes == self._changes:
                break  # else: read again, what was read may be from before the change
        if grant is None:
            self._known.pop(digest, None)
            self._unknown[digest] = time.monotonic() + NEGATIVE_SECONDS
            _trim(self._unknown, MAX_UNKNOWN)
        else:
            self._known[digest] = _Entry(grant, time.monotonic())
            _trim(self._known, MAX_KEYS)
        return grant


def bearer(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the key in an Authorization header.

    Raises:
        InvalidKey: there is none, or it isn't a bearer token.
    """
    value = next((value for name, value in headers if name == b"authorization"), b"").decode("latin-1")
    scheme, _, raw = value.partition(" ")
    if scheme.lower() != "bearer" or not raw.strip():
        raise InvalidKey("You didn't provide an API key. Send it in an Authorization header: Bearer tg_live_...")
    return raw.strip()


def check(grant: KeyGrant, *, scope: str, client: str | None, now: float) -> None:
    """Check what is asked at each request: expiry, scope, the caller's address.

    Args:
        grant: the caller's.
        scope: what the request does, of `API_KEY_SCOPES`.
        client: the caller's IP address; None where it isn't known.
        now: unix seconds.

    Raises:
        InvalidKey: the key has expired.
        Forbidden: its scopes or IP ranges don't cover this request.
    """
    if 0 < grant.expires_at <= now:
        raise InvalidKey("This API key has expired. Create a new one in the console.")
    if scope not in grant.scopes:
        raise Forbidden(f"This API key lacks the scope `{scope}`.", code="insufficient_scope")
    if grant.ip_ranges and not _within(client, grant.ip_ranges):
        raise Forbidden("This API key may not be used from your address.", code="ip_not_authorized")


def check_model(grant: KeyGrant, name: str) -> None:
    """Check that the key may see a model.

    Raises:
        ModelNotFound: it may not; the same answer as for a model that doesn't exist.
    """
    if grant.models and name not in grant.models:
        raise ModelNotFound(name)


def _within(client: str | None, ranges: Iterable[str]) -> bool:
    try:
        address = ipaddress.ip_address(client or "")
    except ValueError:
        return False  # a unix socket: there is no address that could be in a range
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return any(address in ipaddress.ip_network(text, strict=False) for text in ranges)


def _unknown_key() -> InvalidKey:
    return InvalidKey("Incorrect API key provided. It may have been revoked; you find your keys in the console.")


def _trim(cache: OrderedDict[str, object] | OrderedDict[str, float] | OrderedDict[str, _Entry], size: int) -> None:
    while len(cache) > size:
        cache.popitem(last=False)
