"""The room that bodies for Django have, over plain ASGI."""

import asyncio
from typing import Any

import pytest

from gateway import bodies
from gateway.bodies import MAX_BODY, BodyLimit
from tests.gateway.wire.scripted import until

DECLARED = [(b"content-length", str(MAX_BODY).encode())]


class Views:
    """An application that reads the body and answers once it may."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.num_read = 0

    async def __call__(self, _scope: Any, receive: Any, send: Any) -> None:
        """Serve one request, as Django does."""
        while (message := await receive())["type"] != "http.disconnect":
            if not message.get("more_body", False):
                self.num_read += 1
                await self.gate.wait()
                await send({"type": "http.response.start", "status": 200, "headers": []})
                return


async def ask(app: BodyLimit, headers: list[tuple[bytes, bytes]], address: str, pieces: list[bytes]) -> int:
    """Send a body from an address and return the status."""
    statuses = []
    messages = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
    messages.append({"type": "http.request", "body": b"", "more_body": False})

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    await app({"type": "http", "headers": headers, "client": (address, 1)}, receive, send)
    return int(statuses[0])


@pytest.mark.parametrize("headers", [DECLARED, []], ids=["declared", "chunked"])
def test_an_address_has_a_share_of_the_room(
    headers: list[tuple[bytes, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One body more is a 429 for it, another address has room, and so does a request without a body."""
    monkeypatch.setattr(bodies, "MAX_BODIES", 9 * MAX_BODY)

    async def story() -> None:
        views = Views()
        app = BodyLimit(views)
        whole = [b"a" * (MAX_BODY // 2)] * 2
        async with asyncio.TaskGroup() as group:
            served = [group.create_task(ask(app, headers, "10.0.0.1", whole)) for _ in range(2)]
            await until(lambda: views.num_read == 2)
            assert await ask(app, headers, "10.0.0.1", whole) == 429
            served.append(group.create_task(ask(app, headers, "10.0.0.2", whole)))
            served.append(group.create_task(ask(app, [], "10.0.0.1", [])))
            await until(lambda: views.num_read == 4)
            views.gate.set()
        assert [task.result() for task in served] == [200] * 4
        assert await ask(app, headers, "10.0.0.1", whole) == 200
        assert app.buffers.num_bytes == 0

    asyncio.run(story())
