"""The operators' live feed."""

import json
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from asgiref.testing import ApplicationCommunicator
from channels.layers import get_channel_layer
from django.contrib.auth.models import AnonymousUser
from django.contrib.sessions.backends.base import SessionBase
from django.contrib.sessions.models import Session
from django.db import OperationalError
from django.test import Client
from django.utils import timezone

from gateway.console import live
from tenants.models import User
from tenants.reports import LIVE_GROUP

PATIENCE_SECONDS = 60
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


def _signs_out(session: SessionBase, _operator: User) -> None:
    session.flush()


def _session_expires(session: SessionBase, _operator: User) -> None:
    Session.objects.filter(pk=session.session_key).update(expire_date=timezone.now())


def _password_changes(_session: SessionBase, operator: User) -> None:
    operator.set_password("another correct horse")
    operator.save()


def _is_demoted(_session: SessionBase, operator: User) -> None:
    operator.is_staff = False
    operator.save()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("end", [_signs_out, _session_expires, _password_changes, _is_demoted])
def test_feed_ends_with_the_session(
    operator: User, client: Client, monkeypatch: pytest.MonkeyPatch, end: Callable[[SessionBase, User], None]
) -> None:
    """A page that is left open after its reader's session ended goes silent, with a code that says why."""
    monkeypatch.setattr(live, "RECHECK_SECONDS", 0.01)
    client.force_login(operator)
    session = client.session

    async def story() -> dict[str, Any]:
        page = Page(operator, session=session)
        assert await page.connects()
        await sync_to_async(end)(session, operator)
        message = await page.heard()
        while message["type"] != "websocket.close":  # other tests publish to the same group
            message = await page.heard()
        await page.leaves()
        return message

    assert async_to_sync(story)()["code"] == live.SIGNED_OUT


@pytest.mark.django_db(transaction=True)
def test_the_feed_is_looked_at_again_after_an_outage_of_postgres(
    operator: User, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While nobody can be asked the feed goes on; whose session ended meanwhile is cut off afterwards."""
    monkeypatch.setattr(live, "RECHECK_SECONDS", 0.01)
    client.force_login(operator)
    session = client.session
    look, tries = live._is_still_operator, 0

    def away_at_first(user_id: int, session_key: str | None) -> bool:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise OperationalError("the server closed the connection")
        return look(user_id, session_key)

    monkeypatch.setattr(live, "_is_still_operator", away_at_first)

    async def story() -> dict[str, Any]:
        page = Page(operator, session=session)
        assert await page.connects()
        await session.aflush()
        message = await page.heard()
        while message["type"] != "websocket.close":
            message = await page.heard()
        await page.leaves()
        return message

    assert async_to_sync(story)()["code"] == live.SIGNED_OUT
    assert tries >= 3


async def _connects(user: Any, origin: bytes) -> bool:
    page = Page(user, origin)
    connected = await page.connects()
    await page.leaves()
    return connected
