"""`Idempotency-Key`: a request that is sent again gets the answer of the first time, and generates nothing.

    no header                          nothing of this happens (why it is as it is: docs/decisions/0028)
    a key that is new                  claimed in Redis, served, and its answer is kept for KEEP_SECONDS
    the same key and request           the kept answer, with `idempotent-replayed: true`
    the same key, another request      422
    the same key, still being served   409, with a time to wait
    Redis is away                      503: what was asked for can't be promised

Only answers that were told whole with 200 are kept; after anything else (an error, a client that left, an answer over
MAX_ANSWER, a tenant over MAX_OF_TENANT) the key is free again, and a request under it generates anew.

kept.py has the answers.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.types import Message

from gateway.api import sse
from gateway.api.errors import BadRequest, Headers
from gateway.api.exchange import Exchange
from gateway.api.kept import LEASE_SECONDS, Answer, Entry, KeptAnswers
from tenants.contracts import KeyGrant

MAX_KEY = 255  # characters
MAX_RECORDED = 8 << 20  # bytes of an answer
_REPLAYED = (b"idempotent-replayed", b"true")


def entry_of(exchange: Exchange, grant: KeyGrant, body: bytes | bytearray) -> Entry | None:
    """Return what a request has to be looked up by; None: it has no Idempotency-Key.

    Raises:
        BadRequest: the header holds no key.
    """
    key = exchange.header(b"idempotency-key")
    if key is None:
        return None
    if not 0 < len(key) <= MAX_KEY or not key.isascii() or not key.isprintable():
        raise BadRequest(
            f"`Idempotency-Key` takes 1 to {MAX_KEY} printable ASCII characters, such as a UUID",
            param="Idempotency-Key",
        )
    return Entry(grant, key, exchange.scope["path"], body)


@asynccontextmanager
async def once(exchange: Exchange, entry: Entry | None) -> AsyncIterator[bool]:
    """Serve a request in the block, unless it has been served: yields whether there is anything left to do.

    Args:
        exchange: of the request; an answer that is kept is sent through it.
        entry: of the request; None: it has no key.

    Raises:
        IdempotencyKeyReused, IdempotencyKeyInUse: another request has the key, or this one is being served.
        RateLimited: a replay, which counts as a request and as no tokens, is one too many.
        Overloaded: Redis can't be asked.
    """
    if entry is None:
        yield True
        return
    kept = exchange.web.kept
    answer = await kept.claim(entry)
    if answer is not None:
        permit = await exchange.web.admission.admit_call(entry.grant, now=time.monotonic(), apart=False)
        exchange.headers += permit.headers(time.monotonic())
        await _replay(exchange, answer)
        yield False
        return
    recorder = _Recorder(exchange, entry)
    exchange.tap(recorder.take)
    ended = asyncio.Event()
    renewing = asyncio.create_task(_renew(kept, entry, ended))
    try:
        yield True
    finally:
        ended.set()
        await renewing
        if not recorder.kept:
            await kept.free(entry)


async def _renew(kept: KeptAnswers, entry: Entry, ended: asyncio.Event) -> None:
    """Renew a claim until `ended`; Redis may miss two of three."""
    while not ended.is_set():
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEASE_SECONDS / 3):
                await ended.wait()
        if not ended.is_set():
            await kept.renew(entry)


class _Recorder:
    """Keeps what is sent, and stores it just before its end: a client that has all of it finds it kept.

    Args:
        exchange: says whether the answer went wrong after its status line.
        entry: what it is stored under.
    """

    def __init__(self, exchange: Exchange, entry: Entry) -> None:
        self._exchange = exchange
        self._entry = entry
        self._content_type = b""
        self._parts: list[bytes] = []
        self._left = 0  # bytes that it may still get
        self._ended = False
        self.kept = False

    async def take(self, message: Message) -> None:
        """Take a message before it is sent."""
        if message["type"] == "http.response.start":
            self._content_type = next((value for name, value in message["headers"] if name == b"content-type"), b"")
            self._left = MAX_RECORDED if message["status"] == 200 else 0
            return
        body = message.get("body", b"")
        self._left -= len(body)
        if self._left <= 0:
            self._parts.clear()
            return
        self._parts.append(body)
        if not self._ended and (body.endswith(sse.DONE) or not message.get("more_body", False)):
            self._ended = True
            await self._end()

    async def _end(self) -> None:
        if not self._exchange.left and "error" not in self._exchange.noted:
            answer = Answer(self._content_type, b"".join(self._parts))
            self.kept = await self._exchange.web.kept.keep(self._entry, answer)


async def _replay(exchange: Exchange, answer: Answer) -> None:
    exchange.release()
    exchange.noted["replayed"] = True
    headers: Headers = [(b"content-type", answer.content_type), _REPLAYED]
    if answer.content_type.startswith(b"text/event-stream"):
        headers = [*sse.HEADERS, _REPLAYED]
    else:
        headers.append((b"content-length", str(len(answer.body)).encode()))
    await exchange.start(200, headers)
    await exchange.write(answer.body)
    await exchange.end()
