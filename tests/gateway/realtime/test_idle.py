"""A socket that nobody uses, in one process with its real parts around it."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.api.auth import KeyCache
from gateway.drain import Drain
from gateway.realtime import consumers, sockets
from gateway.realtime.consumers import RealtimeConsumer
from gateway.realtime.sockets import Most, Sockets
from tenants.contracts import KeyGrant
from tenants.keys import new_key
from tests.gateway.realtime.test_sockets import grant
from tests.gateway.wire.scripted import until


def test_idle_socket_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """After its time without an event or a response a socket closes with 1000 and says why; nothing of it stays."""
    monkeypatch.setattr(sockets, "RECHECK_SECONDS", 0.05)
    monkeypatch.setattr(consumers, "IDLE_SECONDS", 0.2)

    async def scenario() -> None:
        async def look_up(_digest: str) -> KeyGrant:
            return grant("a", "k")

        held = Sockets(Most.of(10), 15.0)
        web: Any = SimpleNamespace(keys=KeyCache(look_up, "pepper"), sockets=held, drain=Drain(1.0))
        sent: list[dict[str, Any]] = []
        incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        headers = [(b"authorization", f"Bearer {new_key('live')}".encode())]
        scope = {"type": "websocket", "headers": headers, "state": {"web": web}, "client": ("127.0.0.1", 1)}
        held.start()
        incoming.put_nowait({"type": "websocket.connect"})
        running = asyncio.create_task(RealtimeConsumer.as_asgi()(scope, incoming.get, send))
        await until(lambda: len(sent) == 2)
        assert len(held) == 1
        closing = await until(lambda: next((one for one in sent if one["type"] == "websocket.close"), None))
        assert (closing["code"], closing["reason"].split(":")[0]) == (1000, "idle")
        incoming.put_nowait({"type": "websocket.disconnect", "code": 1000})
        await running
        assert len(held) == 0
        await held.stop()
        await web.keys.close()

    asyncio.run(scenario())
