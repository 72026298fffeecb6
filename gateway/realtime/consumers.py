"""`/v1/realtime`: several responses at once over one websocket. Tokens never pass through the channel layer.

A reader who falls behind holds its own socket alone: what is said waits for room, deltas of a response that waits are
joined, and a socket that takes nothing for a time is closed.

close codes   1000 idle   1003 a binary frame   1007 not UTF-8   1008 the caller may no longer, or does not read
              1009 a message over the protocol's bound   1011 no answer to a ping   1012 deploy   1013 overload
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qs

import structlog
from channels.generic.websocket import AsyncWebsocketConsumer

from gateway.admission.limits import Bucket
from gateway.api.auth import check_model
from gateway.api.errors import ApiError, BadRequest, ClientLeft, Overloaded, RateLimited
from gateway.realtime import events, says
from gateway.realtime.asking import ask
from gateway.realtime.callers import SUBPROTOCOL, Caller, caller_of
from gateway.realtime.conversation import Conversation
from gateway.realtime.held import held_bytes
from gateway.realtime.items import item_object, read_item
from gateway.realtime.response import Cancelled, Response
from gateway.realtime.room import Share, no_room
from gateway.realtime.session import Session
from gateway.routing.choose import affinity
from gateway.web import Web
from gateway.workers.errors import SlowConsumer

MAX_RESPONSES = 64  # at once on one socket
PREFETCHES_A_MINUTE = 30  # of one socket
IDLE_SECONDS = 3600.0  # without a response or an event
LAST_WORDS_SECONDS = 2.0  # for responses to tell their ends, before a socket closes

IDLE, BINARY, REFUSED, RESTART, OVERLOAD = 1000, 1003, 1008, 1012, 1013

_log = structlog.get_logger("gateway.realtime")


class RealtimeConsumer(AsyncWebsocketConsumer):  # type: ignore[misc]  # channels has no types
    """One socket."""

    channel_layer_alias = "none"  # nothing comes over Redis, so that sockets live without it

    web: Web
    caller: Caller
    _share: Share
    _session: Session
    _conversation: Conversation

    def __init__(self) -> None:
        super().__init__()
        self._responses: dict[str, tuple[Response, asyncio.Task[None]]] = {}
        self._open = False  # events are taken and said
        self._shutting = False  # events are said, and none is taken
        self._used_at = time.monotonic()
        self._prefetches = Bucket(PREFETCHES_A_MINUTE, PREFETCHES_A_MINUTE, time.monotonic())
        self._does: dict[type[events.ClientEvent], Callable[[Any], Awaitable[None]]] = {
            events.ResponseCreate: self._create,
            events.ResponseCancel: self._cancel,
            events.SessionUpdate: self._update,
            events.ItemCreate: self._add_item,
            events.ItemDelete: self._delete_item,
            events.ItemRetrieve: self._show_item,
            events.SessionPrefetch: self._prefetch,
        }

    # ---------------------------------------------------------------- the socket

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one socket. However it ends, nothing of it stays."""
        self.web = scope["state"]["web"]
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._leave()

    async def dispatch(self, message: dict[str, Any]) -> None:
        """Handle what the server tells; a client that has left in the middle of it is no error of ours."""
        try:
            await super().dispatch(message)
        except ClientLeft:
            return  # the disconnect follows

    async def connect(self) -> None:
        """Accept who shows a key or a session; refuse others before the handshake."""
        try:
            if self.web.drain.draining:
                raise Overloaded("The server is restarting")
            self.caller = caller_of(self.web, self.scope)
            grant = await self.caller.grant()
            self.web.sockets.enter(self, grant)
        except ApiError as error:
            await self._refuse(error)
            return
        query = parse_qs(self.scope.get("query_string", b"").decode("latin-1"))
        self._share = self.web.sockets.room.share(grant.tenant_id)
        self._session = Session(query.get("model", [""])[0], self._share)
        self._conversation = Conversation(self._share)
        await self._accept()
        self.web.drain.open(self)
        await self.say(says.event("session.created", session=self._session.object()))

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """Take one event; whatever is wrong with it is an `error` event, and the socket goes on."""
        if not self._open or self._shutting:
            return
        self._used_at = time.monotonic()
        if text_data is None:
            await self._shut(BINARY, BadRequest("Send events as text frames of JSON", code="binary_frame"))
            return
        event_id: str | None = None
        try:
            event = events.parse(text_data)
            event_id = event.event_id
            await self._does[type(event)](event)
        except events.EventRefused as refused:
            await self.say(says.error_event(refused.error, refused.event_id))
        except ApiError as error:
            await self.say(says.error_event(error, event_id))

    async def say(self, text: str) -> None:
        """Send an event; waits for a reader who has fallen behind.

        Raises:
            ClientLeft: nobody is there, or nobody reads.
        """
        if not self._open:
            raise ClientLeft
        try:
            async with asyncio.timeout(self.web.sockets.slow_seconds):
                await self.send(text_data=text)
        except TimeoutError as error:
            await self._give_up()
            raise ClientLeft from error
        except (OSError, RuntimeError) as error:  # the peer is gone; or the server has closed meanwhile
            if self._open and isinstance(error, RuntimeError):
                raise
            raise ClientLeft from error
        self._used_at = time.monotonic()

    async def drained(self) -> None:
        """Close: the process ends, and what ran here has ended."""
        await self._close(RESTART, "restart: the server is restarting, dial again")

    async def recheck(self) -> None:
        """Close the socket of a caller who may no longer have it, and one that nobody uses."""
        if not self._open or self._shutting:
            return
        try:
            await self.caller.recheck()
        except Overloaded:
            return  # it can't be said just now: looked at again
        except ApiError as error:
            await self._shut(REFUSED, error)
            return
        if not self._responses and time.monotonic() - self._used_at > IDLE_SECONDS:
            await self._close(IDLE, f"idle: nothing was sent for {IDLE_SECONDS:.0f} s, dial again")

    async def _accept(self) -> None:
        offered = self.scope.get("subprotocols", ())
        await self.accept(SUBPROTOCOL if SUBPROTOCOL in offered else None)
        self._open = True

    async def _shut(self, code: int, reason: ApiError) -> None:
        """Say why, let each response that runs tell that it ends for it, and close."""
        if self._shutting:
            return
        self._shutting = True
        try:
            await self.say(says.error_event(reason, None))
        except ClientLeft:
            return
        for response, _ in list(self._responses.values()):
            response.end(reason)
        await self._close(code, f"{reason.error_code}: {reason.message}")

    async def _close(self, code: int, reason: str) -> None:
        self._shutting = True
        if tasks := [task for _, task in self._responses.values()]:
            await asyncio.wait(tasks, timeout=LAST_WORDS_SECONDS)
        if self._open:
            self._open = False
            await self._send_close(code, reason)

    async def _give_up(self) -> None:
        """Close the socket of a reader who doesn't read; what it has not read is cut off."""
        if not self._open:
            return
        self._open = False
        slow = SlowConsumer(f"nothing was read for {self.web.sockets.slow_seconds:.0f} s")
        _log.info("slow_reader", responses=len(self._responses))
        for response, _ in list(self._responses.values()):
            response.end(slow)
        await self._send_close(REFUSED, f"client_too_slow: {slow}")

    async def _send_close(self, code: int, reason: str) -> None:
        try:
            await self.close(code, reason.encode()[:123].decode(errors="ignore"))  # the most that a close frame holds
        except (OSError, RuntimeError):
            _log.debug("already_closed")  # by the peer

    async def _leave(self) -> None:
        """End what the socket had in this process."""
        self._open = False
        self.web.drain.close(self)
        self.web.sockets.leave(self)
        running = list(self._responses.values())
        for response, _ in running:
            response.end(ClientLeft())
        await asyncio.gather(*(task for _, task in running), return_exceptions=True)
        if hasattr(self, "_share"):
            self._share.close()

    async def _refuse(self, error: ApiError) -> None:
        """Answer the handshake with the error's own status where the server can, else with 403.

        A browser shows its page neither: where a later try may succeed, it is let in, told, and sent away.
        """
        if isinstance(error, Overloaded | RateLimited) and b"origin" in dict(self.scope["headers"]):
            await self._accept()
            await self._shut(RESTART if self.web.drain.draining else OVERLOAD, error)
            return
        if "websocket.http.response" not in self.scope.get("extensions", {}):
            await self.close()
            return
        headers = [(b"content-type", b"application/json"), *error.headers]
        await self.base_send({"type": "websocket.http.response.start", "status": error.status, "headers": headers})
        await self.base_send({"type": "websocket.http.response.body", "body": error.json()})

    # ---------------------------------------------------------------- what a client asks for

    async def _create(self, event: events.ResponseCreate) -> None:
        if self.web.drain.draining:
            raise Overloaded("The server is restarting. Dial again.")
        if len(self._responses) >= MAX_RESPONSES:
            raise BadRequest(
                f"{MAX_RESPONSES} responses are running on this socket: wait for one", code="too_many_responses"
            )
        asked = ask(self._session.fields_of(event.response), self._conversation)
        size = held_bytes(event.response)
        if not self._share.take(size):
            raise no_room("wait for a response to end, or close some", param="response", code="too_much_held")
        response = Response(self.web, self.caller, asked, self._conversation, self.say)
        task = asyncio.create_task(response.run())
        self._responses[response.id] = (response, task)
        task.add_done_callback(lambda _: self._ended(response.id, size))

    def _ended(self, response_id: str, size: int) -> None:
        """Forget a response, and what its fields held."""
        del self._responses[response_id]
        self._share.take(-size)

    async def _cancel(self, event: events.ResponseCancel) -> None:
        """Cancel one response; without an id, all."""
        if event.response_id is None and not self._responses:
            raise BadRequest("No response is running", code="response_cancel_not_active")
        if event.response_id is not None and event.response_id not in self._responses:
            raise BadRequest("No such response is running", param="response_id", code="response_not_found")
        for name in [event.response_id] if event.response_id is not None else list(self._responses):
            self._responses[name][0].end(Cancelled())

    async def _update(self, event: events.SessionUpdate) -> None:
        self._session.update(event.session)
        await self.say(says.event("session.updated", session=self._session.object()))

    async def _add_item(self, event: events.ItemCreate) -> None:
        item, previous = self._conversation.add(read_item(event.item, "item"), event.previous_item_id)
        for kind in ("conversation.item.added", "conversation.item.done"):
            await self.say(says.event(kind, previous_item_id=previous, item=item_object(item)))

    async def _delete_item(self, event: events.ItemDelete) -> None:
        self._conversation.remove(event.item_id, field="item_id")
        await self.say(says.event("conversation.item.deleted", item_id=event.item_id))

    async def _show_item(self, event: events.ItemRetrieve) -> None:
        item = self._conversation.get(event.item_id, field="item_id")
        await self.say(says.event("conversation.item.retrieved", item=item_object(item)))

    async def _prefetch(self, event: events.SessionPrefetch) -> None:
        """Tell the workers that the session's next turn would go to; those that don't know it ignore it."""
        if not self._prefetches.take(1, time.monotonic()):
            raise BadRequest(
                f"More than {PREFETCHES_A_MINUTE} prefetches a minute on this socket: send one when the user begins to "
                "type, not one a key",
                code="too_many_prefetches",
            )
        grant = await self.caller.grant()
        model = event.model or self._session.model
        if model:
            check_model(grant, model)
        for name, worker in self.web.registry.keepers(affinity(grant.tenant_id, event.session)):
            if name == model or (not model and (not grant.models or name in grant.models)):
                worker.prefetch(grant.tenant_id, event.session)
        await self.say(says.event("session.prefetched", session=event.session))
