"""When the status line goes out, and what fills a silence: the handler over plain ASGI, a scripted engine behind."""

import asyncio
import json
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import redis.asyncio

from engine.protocol import pb
from gateway.admission.admit import Admission
from gateway.admission.buffers import Buffers
from gateway.admission.counting import Counting
from gateway.admission.leases import Leases
from gateway.api import respond
from gateway.api.auth import KeyCache
from gateway.api.chat import chat_completions
from gateway.api.exchange import Endpoint, Handler
from gateway.api.kept import KeptAnswers
from gateway.api.responses.desk import ResponseDesk
from gateway.drain import Drain
from gateway.metrics.requests import of_process
from gateway.reads import Reads
from gateway.web import Web
from gateway.workers.registry import WorkerRegistry
from gateway.workers.session_desk import SessionDesk
from tenants.contracts import KeyGrant
from tenants.keys import new_key
from tests.gateway.api.test_auth import GRANT
from tests.gateway.wire.scripted import TOKEN, ScriptedEngine, admitted, delta, finished, refused, serving, until

BODY = {"model": "scripted", "messages": [{"role": "user", "content": "hello"}], "stream": True}


class Client:
    """The client's end of one ASGI request."""

    def __init__(
        self,
        web: Web,
        body: dict[str, Any],
        handler: Handler = chat_completions,
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        self.sent: list[dict[str, Any]] = []
        self._leave = asyncio.Event()
        self._messages = [{"type": "http.request", "body": json.dumps(body).encode()}]
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/chat/completions",
            "headers": [(b"authorization", f"Bearer {new_key('live')}".encode()), *headers],
            "state": {"web": web, "request_id": "req_x"},
        }
        self.task = asyncio.create_task(Endpoint(handler)(scope, self._receive, self._send))

    @property
    def status(self) -> int:
        """The status line, 0: none yet."""
        return int(self.sent[0]["status"]) if self.sent else 0

    @property
    def body(self) -> bytes:
        """What came of the body."""
        return b"".join(message.get("body", b"") for message in self.sent)

    def leave(self) -> None:
        """Close the connection."""
        self._leave.set()

    async def _receive(self) -> dict[str, Any]:
        if self._messages:
            return self._messages.pop(0)
        await self._leave.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.sent.append(dict(message))


@asynccontextmanager
async def web_and_engine() -> AsyncIterator[tuple[Web, ScriptedEngine]]:
    """The parts of a web process around a scripted engine."""

    async def look_up(_digest: str) -> KeyGrant:
        return GRANT

    with tempfile.TemporaryDirectory(prefix="tollgate-") as name:
        async with serving(Path(name)) as engine:
            registry = WorkerRegistry(lambda: asyncio.sleep(0, [engine.view()]), TOKEN)
            await registry.refresh()
            await until(lambda: registry.num_connected == 1)
            store = redis.asyncio.Redis.from_url(os.environ["REDIS_URL"])
            admission = Admission(Leases(store))
            reads, desk, responses = Reads(), SessionDesk(), ResponseDesk()
            yield (
                Web(
                    keys=KeyCache(look_up, "pepper"),
                    registry=registry,
                    admission=admission,
                    buffers=Buffers(64 << 20),
                    counting=Counting(admission),
                    drain=Drain(60),
                    reads=reads,
                    sessions=desk,
                    responses=responses,
                    kept=KeptAnswers(store),
                    sockets=cast(Any, None),  # no websocket is dialled here
                    metrics=of_process(),
                ),
                engine,
            )
            await store.aclose()
            desk.close()
            responses.close()
            reads.close()
            await registry.close()


def run(story: Callable[[Web, ScriptedEngine], Coroutine[Any, Any, None]]) -> None:
    """Run a story."""

    async def main() -> None:
        async with web_and_engine() as (web, engine):
            await story(web, engine)
            assert web.drain.num_live == 0
            assert web.registry.num_active == 0
            assert web.buffers.num_bytes == 0

    asyncio.run(main())


def test_status_waits_for_admission() -> None:
    """No status line before the worker admits; then 200 and the role at once."""

    async def story(web: Web, engine: ScriptedEngine) -> None:
        client = Client(web, BODY)
        sent = (await until(lambda: engine.submits))[0]
        assert client.status == 0
        await engine.say(admitted(sent.stream))
        await until(lambda: b'"role":"assistant"' in client.body)
        assert client.status == 200
        await engine.say(delta(sent.stream, "a"), finished(sent.stream))
        await client.task
        assert client.body.endswith(b"data: [DONE]\n\n")

    run(story)


def test_refusal_is_a_status() -> None:
    """What the worker refuses is a status and a body, not a stream."""

    async def story(web: Web, engine: ScriptedEngine) -> None:
        client = Client(web, BODY)
        sent = (await until(lambda: engine.submits))[0]
        await engine.say(refused(sent.stream, pb.REFUSAL_CODE_QUEUE_FULL))
        await client.task
        assert client.status == 429
        assert json.loads(client.body)["error"]["code"] == "rate_limit_exceeded"

    run(story)


def test_long_wait_is_filled_with_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a time without admission the status goes out and pings follow; a refusal is then an error event."""
    monkeypatch.setattr(respond, "PING_SECONDS", 0.02)

    async def story(web: Web, engine: ScriptedEngine) -> None:
        client = Client(web, BODY)
        sent = (await until(lambda: engine.submits))[0]
        await until(lambda: client.body.count(b": ping\n\n") >= 3)
        assert client.status == 200
        await engine.say(refused(sent.stream, pb.REFUSAL_CODE_KV_LIMIT))
        await client.task
        frames = [frame for frame in client.body.split(b"\n\n") if not frame.startswith(b":")]
        assert json.loads(frames[0].removeprefix(b"data: "))["error"]["code"] == "kv_limit_exceeded"
        assert frames[1] == b"data: [DONE]"

    run(story)


def test_client_that_leaves_while_waiting() -> None:
    """A client that goes before admission cancels its request, and gets no answer."""

    async def story(web: Web, engine: ScriptedEngine) -> None:
        client = Client(web, BODY)
        sent = (await until(lambda: engine.submits))[0]
        client.leave()
        await until(lambda: engine.cancels == [sent.stream])
        await client.task
        assert client.sent == []

    run(story)


def test_client_that_leaves_in_mid_stream() -> None:
    """A client that goes while it reads cancels its request."""

    async def story(web: Web, engine: ScriptedEngine) -> None:
        client = Client(web, BODY)
        sent = (await until(lambda: engine.submits))[0]
        await engine.say(admitted(sent.stream), delta(sent.stream, "a"))
        await until(lambda: b'"content":"a"' in client.body)
        client.leave()
        await until(lambda: engine.cancels == [sent.stream])
        await client.task

    run(story)


def test_draining_process_takes_nothing_new() -> None:
    """A process that stops answers 503 with a time to wait."""

    async def story(web: Web, engine: ScriptedEngine) -> None:
        await web.drain.run()
        client = Client(web, BODY)
        await client.task
        assert client.status == 503
        assert (b"retry-after", b"1") in client.sent[0]["headers"]
        assert not engine.submits

    run(story)


def test_defect_is_a_500_in_the_same_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception of ours is a 500 that tells nothing of the inside."""

    async def broken(*_: object) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr("gateway.api.chat.chat_tokens", broken)

    async def story(web: Web, engine: ScriptedEngine) -> None:
        client = Client(web, BODY)
        await client.task
        assert client.status == 500
        assert b"secret" not in client.body
        assert set(json.loads(client.body)["error"]) == {"message", "type", "param", "code"}

    run(story)
