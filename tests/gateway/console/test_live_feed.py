"""The operators' live feed."""

import json
import uuid
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from asgiref.testing import ApplicationCommunicator
from channels.layers import get_channel_layer
from django.conf import settings
from django.contrib.auth.models import AnonymousUser
from django.contrib.sessions.backends.base import SessionBase

from gateway.console import live
from tenants.contracts import LIVE_GROUP
from tenants.models import User

PATIENCE_SECONDS = 10
OWN = b"http://localhost:8000"


class Page:
    """A page's socket, as the server sees it."""

    def __init__(self, user: Any, origin: bytes = OWN, session: SessionBase | None = None) -> None:
        scope = {
            "type": "websocket",
            "path": "/ws/live/",
            "headers": [(b"host", b"localhost:8000"), (b"origin", origin)],
            "user": user,
            "session": session,
        }
        self.socket = ApplicationCommunicator(live.LiveConsumer.as_asgi(), scope)

    async def connects(self) -> bool:
        """Dial, and tell whether the server accepts."""
        await self.socket.send_input({"type": "websocket.connect"})
        answer = await self.socket.receive_output(PATIENCE_SECONDS)
        return bool(answer["type"] == "websocket.accept")

    async def heard(self) -> dict[str, Any]:
        """Return the server's next message."""
        message: dict[str, Any] = await self.socket.receive_output(PATIENCE_SECONDS)
        return message

    async def leaves(self) -> None:
        """Close the socket from the page's side."""
        await self.socket.send_input({"type": "websocket.disconnect", "code": 1001})
        await self.socket.wait(PATIENCE_SECONDS)


def test_hints_arrive(operator: User) -> None:
    """What the group says reaches an operator's page as it was said."""

    async def story() -> None:
        page = Page(operator)
        assert await page.connects()
        layer = get_channel_layer()
        assert layer is not None
        mark = str(uuid.uuid4())
        await layer.group_send(LIVE_GROUP, {"type": "hint", "kind": "workers", "seq": 7, "mark": mark})
        message = json.loads((await page.heard())["text"])
        while message.get("mark") != mark:  # other tests publish to the same group
            message = json.loads((await page.heard())["text"])
        assert message == {"type": "hint", "kind": "workers", "seq": 7, "mark": mark}
        await page.socket.send_input({"type": "websocket.receive", "text": '{"type": "hint"}'})  # a page has no say
        await page.leaves()

    async_to_sync(story)()


@pytest.mark.parametrize(
    "origin", [b"http://evil.example", b"http://localhost:8001", b"null", b"", b"http://[", b"\xff"]
)
def test_foreign_pages_are_refused(operator: User, origin: bytes) -> None:
    """A page of another site, or without an origin, gets no feed although the browser sends the cookie."""
    assert not async_to_sync(_connects)(operator, origin)


def test_operators_only(member: Callable[[str], User]) -> None:
    """Neither an owner of a tenant nor a stranger gets the feed."""
    assert not async_to_sync(_connects)(member("owner"), OWN)
    assert not async_to_sync(_connects)(AnonymousUser(), OWN)


@pytest.mark.django_db(transaction=True)
def test_feed_ends_with_the_session(operator: User, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that is left open after signing out goes silent, with a code that says why."""
    monkeypatch.setattr(live, "RECHECK_SECONDS", 0.01)
    session = import_module(settings.SESSION_ENGINE).SessionStore()
    session.create()

    async def story() -> dict[str, Any]:
        page = Page(operator, session=session)
        assert await page.connects()
        await session.aflush()
        message = await page.heard()
        while message["type"] != "websocket.close":  # other tests publish to the same group
            message = await page.heard()
        await page.leaves()
        return message

    assert async_to_sync(story)()["code"] == live.SIGNED_OUT


async def _connects(user: Any, origin: bytes) -> bool:
    page = Page(user, origin)
    connected = await page.connects()
    await page.leaves()
    return connected
