"""Answers that are kept in Redis under the keys of requests, for all web processes.

Keys hold within a project, as responses do: what one project was told is no other's. Redis gets no text: a request is
its digest, and an answer is encrypted under a key made of the tenant's secret, the project and the client's own
Idempotency-Key, which is kept nowhere.
"""

import asyncio
import hmac
import secrets
import zlib
from collections.abc import Awaitable
from typing import cast

import msgspec
import redis.asyncio
import structlog
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from redis.exceptions import RedisError

from gateway.api.errors import IdempotencyKeyInUse, IdempotencyKeyReused, Overloaded
from tenants.contracts import KeyGrant

KEEP_SECONDS = 86400
LEASE_SECONDS = 30.0  # of a claim; renewed while the request is served, so that a process that dies frees its keys
MAX_ANSWER = 1 << 20  # bytes of an answer as it is kept, compressed
MAX_OF_TENANT = 64 << 20  # bytes of one tenant's answers, kept within KEEP_SECONDS
_LEASE_MS = int(LEASE_SECONDS * 1000)
_NONCE_BYTES = 12

_log = structlog.get_logger("gateway.idempotency")

# KEYS entry; ARGV digest, claim, lease in ms. Answer: {"new"}, {"other"}, {"running"} or {"answer", bytes}.
_CLAIM = """
local held = redis.call('HMGET', KEYS[1], 'digest', 'answer')
if not held[1] then
  redis.call('HSET', KEYS[1], 'digest', ARGV[1], 'claim', ARGV[2])
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
  return {'new'}
end
if held[1] ~= ARGV[1] then return {'other'} end
if held[2] then return {'answer', held[2]} end
return {'running'}
"""

# KEYS entry; ARGV claim, lease in ms; 0: give it up.
_RENEW = """
if redis.call('HGET', KEYS[1], 'claim') ~= ARGV[1] then return 0 end
if ARGV[2] == '0' then return redis.call('DEL', KEYS[1]) end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
"""

# KEYS entry, bytes of the tenant; ARGV claim, answer, seconds to keep it, most bytes of the tenant. 1: it is kept.
_KEEP = """
if redis.call('HGET', KEYS[1], 'claim') ~= ARGV[1] then return 0 end
local used = redis.call('INCRBY', KEYS[2], #ARGV[2])
if used == #ARGV[2] then redis.call('EXPIRE', KEYS[2], ARGV[3]) end
if used > tonumber(ARGV[4]) then
  redis.call('DECRBY', KEYS[2], #ARGV[2])
  redis.call('DEL', KEYS[1])
  return 0
end
redis.call('HSET', KEYS[1], 'answer', ARGV[2])
redis.call('HDEL', KEYS[1], 'claim')
return redis.call('EXPIRE', KEYS[1], ARGV[3])
"""


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """An answer as it was sent, without what belongs to one exchange."""

    content_type: bytes
    body: bytes


class Entry:
    """What Redis has under one key of a project, and the secret that it doesn't have.

    Args:
        grant: whose key it is.
        key: the client's.
        path, body: of the request.
    """

    def __init__(self, grant: KeyGrant, key: str, path: str, body: bytes | bytearray) -> None:
        self.grant = grant
        of_tenant = f"tollgate:{{tenant:{grant.tenant_id}}}:idempotency"
        known = b"\0".join((b"idempotency answer", grant.project_id.encode(), key.encode()))
        self._secret = hmac.digest(grant.namespace, known, "sha256")
        self.name = f"{of_tenant}:{hmac.digest(self._secret, b'name', 'sha256').hex()}"
        self.budget = f"{of_tenant}-bytes"
        self.digest = hmac.digest(self._secret, path.encode() + b"\0" + body, "sha256")
        self.claim = secrets.token_bytes(16)

    def sealed(self, answer: Answer) -> bytes:
        """Return an answer, encrypted for this request."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        plain = zlib.compress(msgspec.msgpack.encode(answer), 1)
        return nonce + AESGCM(self._secret).encrypt(nonce, plain, self.digest)

    def opened(self, sealed: bytes) -> Answer:
        """Return the answer that was kept for this request."""
        plain = AESGCM(self._secret).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], self.digest)
        return msgspec.msgpack.decode(zlib.decompress(plain), type=Answer)


class KeptAnswers:
    """The answers, and claims to give them.

    Args:
        store: Redis, with short socket timeouts. Its calls are never cancelled: redis-py can swallow a cancellation.
    """

    def __init__(self, store: "redis.asyncio.Redis[bytes]") -> None:
        self._claim = store.register_script(_CLAIM)
        self._renew = store.register_script(_RENEW)
        self._keep = store.register_script(_KEEP)

    async def claim(self, entry: Entry) -> Answer | None:
        """Claim the key and return None, or return the answer that is kept.

        Raises:
            IdempotencyKeyReused, IdempotencyKeyInUse: another request has the key, or this one is being served.
            Overloaded: Redis can't be asked.
        """
        try:
            call = self._claim(keys=[entry.name], args=[entry.digest, entry.claim, _LEASE_MS])
            state, *rest = await cast(Awaitable[list[bytes]], call)
        except (RedisError, OSError) as error:
            _log.warning("idempotency_away", reason=f"{type(error).__name__}: {error}")
            raise Overloaded(
                "Idempotency keys can't be looked up just now: try again, or leave the key out."
            ) from error
        if state == b"other":
            raise IdempotencyKeyReused("Another request has this Idempotency-Key: send a new key with this one.")
        if state == b"running":
            raise IdempotencyKeyInUse("The request with this Idempotency-Key is still being served. Try again.")
        return await asyncio.to_thread(entry.opened, rest[0]) if rest else None

    async def keep(self, entry: Entry, answer: Answer) -> bool:
        """Keep the answer of a claimed request; say whether it is kept: it may be too large, or one too many."""
        sealed = await asyncio.to_thread(entry.sealed, answer)
        if len(sealed) > MAX_ANSWER:
            return False
        args: list[bytes | int] = [entry.claim, sealed, KEEP_SECONDS, MAX_OF_TENANT]
        try:
            return bool(await cast(Awaitable[int], self._keep(keys=[entry.name, entry.budget], args=args)))
        except (RedisError, OSError) as error:
            _log.warning("idempotency_not_kept", reason=f"{type(error).__name__}: {error}")
            return False

    async def renew(self, entry: Entry) -> None:
        """Hold a claim for LEASE_SECONDS more."""
        await self._lease(entry, _LEASE_MS)

    async def free(self, entry: Entry) -> None:
        """Give a claim up."""
        await self._lease(entry, 0)

    async def _lease(self, entry: Entry, milliseconds: int) -> None:
        try:
            await cast(Awaitable[int], self._renew(keys=[entry.name], args=[entry.claim, milliseconds]))
        except (RedisError, OSError) as error:
            _log.warning("idempotency_not_renewed", reason=f"{type(error).__name__}: {error}")
