"""The operators' live feed: forwards the hints of the controller to a page."""

import asyncio
import contextlib
from typing import Any

import msgspec
import structlog
from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.db import DatabaseError

from gateway.realtime.callers import own_origin, session_user
from tenants.models import User
from tenants.reports import LIVE_GROUP

SIGNED_OUT = 4401  # close code: the page reloads, and so comes to the sign-in page
RECHECK_SECONDS = 15.0

_log = structlog.get_logger("gateway.live")


class LiveConsumer(AsyncWebsocketConsumer):  # type: ignore[misc]  # channels has no types
    """One operator's page. Takes nothing from the page; what the group says goes out as it came in."""

    recheck: "asyncio.Task[None] | None" = None

    async def connect(self) -> None:
        """Accept an operator whose page is of this host; refuse anybody else before the handshake."""
        user = self.scope.get("user")
        if not isinstance(user, User) or not user.is_staff or not own_origin(dict(self.scope["headers"])):
            await self.close()
            return
        assert self.channel_layer is not None
        await self.channel_layer.group_add(LIVE_GROUP, self.channel_name)
        await self.accept()
        self.recheck = asyncio.create_task(self._watch(user.pk))

    async def disconnect(self, code: int) -> None:
        """Leave the group."""
        if self.recheck is not None:
            self.recheck.cancel()
        if self.channel_layer is not None:
            await self.channel_layer.group_discard(LIVE_GROUP, self.channel_name)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """Ignore what a page says: the feed has one direction."""

    async def hint(self, event: dict[str, Any]) -> None:
        """Forward a hint of the group."""
        await self.send(text_data=msgspec.json.encode(event).decode())

    async def _watch(self, user_id: int) -> None:
        """Close the feed when the reader signs out or stops being an operator."""
        session = self.scope.get("session")
        with contextlib.suppress(asyncio.CancelledError):
            while True:
                await asyncio.sleep(RECHECK_SECONDS)
                try:
                    is_still = await database_sync_to_async(_is_still_operator)(
                        user_id, getattr(session, "session_key", None)
                    )
                except DatabaseError as error:  # the feed goes on, and is looked at again
                    _log.warning("feed_unchecked", reason=str(error).strip())
                    continue
                if not is_still:
                    await self.close(SIGNED_OUT)
                    return


def _is_still_operator(user_id: int, session_key: str | None) -> bool:
    user = session_user(session_key or "")
    return user is not None and user.pk == user_id and user.is_staff
