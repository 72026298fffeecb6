"""Bodies on their way in: who has room for them, how long they may take, and what is left of one that is refused."""

import asyncio
import dataclasses
import gc
import json
import time
import tracemalloc
import uuid
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec
import pytest

from gateway.admission.buffers import LEAST_BYTES, Buffers
from gateway.api import chat as chat_module
from gateway.api import exchange as module
from gateway.api.chat import chat_completions
from gateway.api.completions import completions
from gateway.api.embeddings import embeddings
from gateway.api.errors import Forbidden
from gateway.api.exchange import MAX_BODY, Endpoint, Handler
from gateway.api.responses.endpoints import count_input_tokens, create_response
from gateway.api.tokens import detokenize, tokenize
from gateway.web import Web
from tenants.contracts import KeyGrant
from tenants.keys import new_key
from tests.gateway.api import test_waiting
from tests.gateway.api.test_auth import GRANT
from tests.gateway.api.test_waiting import run
from tests.gateway.wire.scripted import ScriptedEngine, admitted, delta, finished, until

CHAT = {"model": "scripted", "messages": [{"role": "user", "content": "hello"}]}
SURFACES: dict[str, Handler] = {
    "chat": chat_completions,
    "completions": completions,
    "embeddings": embeddings,
    "responses": create_response,
    "input_tokens": count_input_tokens,
    "tokenize": tokenize,
    "detokenize": detokenize,
}
every_surface = pytest.mark.parametrize("handler", SURFACES.values(), ids=SURFACES)


class Sender:
    """A client that sends its body piece by piece, as the test says.

    Args:
        web: the process's parts.
        handler: who is asked.
        headers: beside the key.
    """

    def __init__(
        self, web: Web, handler: Handler = chat_completions, headers: Sequence[tuple[bytes, bytes]] = ()
    ) -> None:
        self.sent: list[dict[str, Any]] = []
        self.num_asked = 0  # for a piece of the body, or for the client's leave
        self._messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1",
            "headers": [(b"authorization", f"Bearer {new_key('live')}".encode()), *headers],
            "state": {"web": web, "request_id": "req_x"},
        }
        self.task = asyncio.create_task(Endpoint(handler)(scope, self._receive, self._send))

    @property
    def headers(self) -> dict[bytes, bytes]:
        """Headers of the answer."""
        return dict(self.sent[0]["headers"])

    @property
    def outcome(self) -> tuple[int, str]:
        """Status and code of a refusal."""
        body = b"".join(message.get("body", b"") for message in self.sent)
        return self.sent[0]["status"], json.loads(body)["error"]["code"]

    def push(self, piece: bytes, *, more: bool = True) -> None:
        """Send a piece."""
        self._messages.put_nowait({"type": "http.request", "body": piece, "more_body": more})

    def leave(self) -> None:
        """Close the connection."""
        self._messages.put_nowait({"type": "http.disconnect"})

    async def _receive(self) -> dict[str, Any]:
        self.num_asked += 1
        return await self._messages.get()

    async def _send(self, message: Any) -> None:
        self.sent.append(dict(message))


def declared(num_bytes: int) -> list[tuple[bytes, bytes]]:
    """Return the header of a body of so many bytes."""
    return [(b"content-length", str(num_bytes).encode())]


CHUNKED = [(b"transfer-encoding", b"chunked")]


def with_room(story: Callable[[Web, ScriptedEngine], Coroutine[Any, Any, None]], most: int = 16 << 20) -> None:
    """Run a story in a process that holds `most` bytes of bodies; none may be left."""

    async def roomy(web: Web, engine: ScriptedEngine) -> None:
        narrow = dataclasses.replace(web, buffers=Buffers(most))
        await story(narrow, engine)
        assert (narrow.buffers.num_bytes, narrow.buffers.num_holders) == (0, 0)

    run(roomy)


@every_surface
def test_a_tenants_bodies_have_a_share(handler: Handler) -> None:
    """One body more than fits is refused before a byte of it is read, and its connection closed; then there is room."""

    async def story(web: Web, _engine: ScriptedEngine) -> None:
        first = Sender(web, handler, declared(MAX_BODY))
        await until(lambda: first.num_asked)
        late = Sender(web, handler, declared(1000))
        late.leave()
        await late.task
        assert late.outcome == (429, "too_many_bodies")
        assert late.headers[b"connection"] == b"close"
        assert late.headers[b"retry-after"] == b"1"
        first.leave()
        await first.task
        again = Sender(web, handler, declared(1000))
        await until(lambda: again.num_asked)
        again.leave()
        await again.task

    with_room(story)


def test_another_tenant_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bodies that one tenant trickles in hold up nobody else, until there is no room at all: then it is a 503."""

    async def story(web: Web, _engine: ScriptedEngine) -> None:
        first = Sender(web, headers=declared(MAX_BODY))
        await until(lambda: first.num_asked)
        monkeypatch.setattr(test_waiting, "GRANT", msgspec.structs.replace(GRANT, tenant_id="another"))
        small = Sender(web, headers=declared(1 << 20))
        await until(lambda: small.num_asked)
        monkeypatch.setattr(test_waiting, "GRANT", msgspec.structs.replace(GRANT, tenant_id="third"))
        large = Sender(web, headers=declared(MAX_BODY))
        large.leave()
        await large.task
        assert large.outcome == (503, "server_is_overloaded")
        assert large.headers[b"connection"] == b"close"
        for sender in (first, small):
            sender.leave()
            await sender.task

    with_room(story)


def test_a_body_without_a_length_counts_as_it_grows() -> None:
    """It is refused in the middle where there is no room for more of it."""

    async def story(web: Web, _engine: ScriptedEngine) -> None:
        first = Sender(web, headers=declared(3 << 20))
        await until(lambda: first.num_asked)
        growing = Sender(web, headers=CHUNKED)
        await until(lambda: growing.num_asked)
        assert web.buffers.num_bytes == (3 << 20) + LEAST_BYTES
        for _ in range(2):
            growing.push(b" " * (1 << 20))
        growing.push(b"", more=False)
        await growing.task
        assert growing.outcome == (429, "too_many_bodies")
        assert web.buffers.num_bytes == 3 << 20
        first.leave()
        await first.task

    with_room(story)


@pytest.mark.parametrize("headers", [declared(1000), declared(MAX_BODY), CHUNKED], ids=["small", "large", "chunked"])
def test_a_body_that_is_trickled_is_refused_in_time(
    monkeypatch: pytest.MonkeyPatch, headers: list[tuple[bytes, bytes]]
) -> None:
    """However many pieces have come, it has a time for the whole; then it is a 408 and its room is free."""
    monkeypatch.setattr(module, "BODY_SECONDS", 0.05)

    async def story(web: Web, _engine: ScriptedEngine) -> None:
        slow = Sender(web, headers=headers)
        trickling = asyncio.create_task(_trickle(slow))
        await until(lambda: slow.sent)
        assert web.buffers.num_bytes == 0
        trickling.cancel()
        slow.leave()
        await slow.task
        assert slow.outcome == (408, "request_timeout")
        assert slow.headers[b"connection"] == b"close"

    with_room(story)


async def _trickle(sender: Sender) -> None:
    while True:
        sender.push(b" ")
        await asyncio.sleep(0.001)


def test_a_request_that_runs_holds_no_room_for_its_body() -> None:
    """What was admitted is bounded by the tenant's own limits."""

    async def story(web: Web, engine: ScriptedEngine) -> None:
        client = Sender(web)
        client.push(json.dumps(CHAT).encode(), more=False)
        stream = (await until(lambda: engine.submits))[0].stream
        await until(lambda: web.buffers.num_bytes == 0)
        await engine.say(admitted(stream), delta(stream, "hi"), finished(stream))
        await client.task
        assert client.sent[0]["status"] == 200

    with_room(story)


def test_who_is_not_known_sends_no_body(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key is asked for first: of a body that comes with a bad one nothing is read or counted before the answer."""
    monkeypatch.setattr(module, "LINGER_SECONDS", 0.01)
    monkeypatch.setattr(chat_module, "check", _refused)

    async def story(web: Web, _engine: ScriptedEngine) -> None:
        for headers in (declared(MAX_BODY), CHUNKED):
            client = Sender(web, headers=headers)
            await client.task
            assert client.outcome == (403, "forbidden")
            assert client.headers[b"connection"] == b"close"
        small = Sender(web, headers=declared(100))
        await small.task  # where the headers say that there is little, nothing is waited for
        assert small.num_asked == 0
        assert b"connection" not in small.headers  # the server reads so little by itself

    with_room(story)


def _refused(_grant: KeyGrant, **_: object) -> None:
    raise Forbidden("no")


@every_surface
def test_who_has_no_requests_left_sends_no_body(handler: Handler, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood over a limit of requests costs no reading: it is refused with the body where it is."""
    monkeypatch.setattr(module, "LINGER_SECONDS", 0.01)
    policy = msgspec.structs.replace(GRANT.policy, rpm=1)
    grant = msgspec.structs.replace(GRANT, tenant_id=uuid.uuid4().hex, policy=policy)
    monkeypatch.setattr(test_waiting, "GRANT", grant)

    async def story(web: Web, _engine: ScriptedEngine) -> None:
        for apart in (True, False):
            await web.admission.admit_call(grant, now=time.monotonic(), apart=apart)
        client = Sender(web, handler, declared(MAX_BODY))
        await client.task
        assert client.outcome == (429, "rate_limit_exceeded")
        assert client.headers[b"connection"] == b"close"

    with_room(story)


def test_a_client_that_waits_to_be_asked_sends_nothing() -> None:
    """With `Expect: 100-continue` the answer says it all; to listen would be to ask for the body."""

    async def story(web: Web, _engine: ScriptedEngine) -> None:
        client = Sender(web, headers=[*declared(MAX_BODY + 1), (b"expect", b"100-continue")])
        await client.task
        assert client.outcome == (413, "request_too_large")
        assert client.num_asked == 0

    with_room(story)


def test_the_rest_of_a_body_is_dropped_before_the_connection_is_closed() -> None:
    """The answer is there at once; then its client may end what it sends, up to a bound, so that no reset hits it."""

    async def story(web: Web, _engine: ScriptedEngine) -> None:
        client = Sender(web, headers=declared(2 * MAX_BODY))
        await until(lambda: client.num_asked)
        assert client.outcome == (413, "request_too_large")
        assert client.sent[-1]["more_body"] is True
        for _ in range(10):
            client.push(b" " * (1 << 20))
        await client.task
        assert client.num_asked <= 4
        assert client.sent[-1]["more_body"] is False

    with_room(story)


@pytest.mark.parametrize("kind", ["too large", "no json", "no room", "left", "slow"])
def test_nothing_is_left_of_a_body_that_is_refused(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Megabytes that came go with the refusal, and don't wait for Python to look for rubbish."""
    monkeypatch.setattr(module, "LINGER_SECONDS", 0.0)
    if kind == "slow":
        monkeypatch.setattr(module, "BODY_SECONDS", 0.02)

    async def refuse(web: Web) -> None:
        client = Sender(web, headers=CHUNKED)
        for _ in range(3):
            client.push(b"[" + b" " * (1 << 20))
        if kind == "too large":
            client.push(b" " * (2 << 20))
        elif kind == "no json":
            client.push(b"", more=False)
        elif kind == "left":
            client.leave()
        await client.task

    async def story(web: Web, _engine: ScriptedEngine) -> None:
        narrow = dataclasses.replace(web, buffers=Buffers(8 << 20)) if kind == "no room" else web
        await refuse(narrow)
        gc.collect()
        gc.disable()
        tracemalloc.start()
        try:
            for _ in range(8):
                await refuse(narrow)
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            gc.enable()
        assert held < 2 << 20
        assert narrow.buffers.num_bytes == 0

    with_room(story, most=64 << 20)
