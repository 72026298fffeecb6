"""`/v1/realtime`: several responses at once over one websocket. Tokens never pass through the channel layer."""

import asyncio
import time
from urllib.parse import parse_qs

from channels.generic.websocket import AsyncWebsocketConsumer

from gateway.admission.limits import Bucket
from gateway.api.auth import check_model
from gateway.api.errors import ApiError, BadRequest, ClientLeft, Overloaded
from gateway.api.schemas import ChatRequest
from gateway.realtime import events
from gateway.realtime.callers import SUBPROTOCOL, Caller, caller_of
from gateway.realtime.response import Cancelled, Response
from gateway.routing.choose import affinity
from gateway.web import Web

MAX_RESPONSES = 64  # at once on one socket
PREFETCHES_A_MINUTE = 30  # of one socket
SERVICE_RESTART = 1012  # close code: dial again


class RealtimeConsumer(AsyncWebsocketConsumer):  # type: ignore[misc]  # channels has no types
    """One socket."""

    channel_layer_alias = "none"  # nothing comes over Redis, so that sockets live without it

    web: Web
    caller: Caller

    def __init__(self) -> None:
        super().__init__()
        self._responses: dict[str, tuple[Response, asyncio.Task[None]]] = {}
        self._default_model = ""
        self._open = False
        self._prefetches = Bucket(PREFETCHES_A_MINUTE, PREFETCHES_A_MINUTE, time.monotonic())

    async def connect(self) -> None:
        """Accept who shows a key or a session; refuse others before the handshake (403)."""
        self.web = self.scope["state"]["web"]
        try:
            if self.web.drain.draining:
                raise Overloaded("The server is restarting")
            self.caller = caller_of(self.web, self.scope)
            await self.caller.grant()
        except ApiError as error:
            await self._refuse(error)
            return
        query = parse_qs(self.scope.get("query_string", b"").decode("latin-1"))
        self._default_model = query.get("model", [""])[0]
        offered = self.scope.get("subprotocols", ())
        await self.accept(SUBPROTOCOL if SUBPROTOCOL in offered else None)
        self._open = True
        self.web.drain.open(self)
        session = {"object": "realtime.session", "type": "realtime", "model": self._default_model or None}
        await self.say(events.server_event("session.created", session=session))

    async def disconnect(self, code: int) -> None:
        """End all responses of the client that left."""
        self._open = False
        if hasattr(self, "web"):
            self.web.drain.close(self)
        running = list(self._responses.values())
        for response, _ in running:
            response.end(ClientLeft())
        await asyncio.gather(*(task for _, task in running), return_exceptions=True)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """Take one event; whatever is wrong with it is an `error` event, and the socket goes on."""
        event_id: str | None = None
        try:
            if text_data is None:
                raise BadRequest("Send events as text frames of JSON")
            event = events.parse(text_data)
            event_id = event.event_id
            if event.response is not None:
                self._create(event.response.chat(self._default_model))
            elif event.session:
                await self._prefetch(event.session, event.model or self._default_model)
            else:
                self._cancel(event.response_id)
        except events.EventRefused as refused:
            await self.say(events.error_event(refused.error, refused.event_id))
        except ApiError as error:
            await self.say(events.error_event(error, event_id))

    async def say(self, text: str) -> None:
        """Send an event, unless the client has left."""
        if self._open:
            await self.send(text_data=text)

    async def drained(self) -> None:
        """Close: the process ends, and what ran here has ended."""
        await asyncio.gather(*(task for _, task in self._responses.values()), return_exceptions=True)
        if self._open:
            self._open = False
            await self.close(SERVICE_RESTART)

    def _create(self, request: ChatRequest) -> None:
        if self.web.drain.draining:
            raise Overloaded("The server is restarting. Dial again.")
        if len(self._responses) >= MAX_RESPONSES:
            raise BadRequest(
                f"{MAX_RESPONSES} responses are running on this socket: wait for one", code="too_many_responses"
            )
        response = Response(self.web, self.caller, request, self.say)
        task = asyncio.create_task(response.run())
        self._responses[response.id] = (response, task)
        task.add_done_callback(lambda _: self._responses.pop(response.id, None))

    def _cancel(self, response_id: str | None) -> None:
        """Cancel one response; without an id, all."""
        chosen = [response_id] if response_id is not None else list(self._responses)
        if response_id is not None and response_id not in self._responses:
            raise BadRequest("No such response is running", param="response_id", code="response_not_found")
        for name in chosen:
            self._responses[name][0].end(Cancelled())

    async def _prefetch(self, session: str, model: str) -> None:
        """Tell the workers that the session's next turn would go to; those that don't know it ignore it."""
        if not self._prefetches.take(1, time.monotonic()):
            raise BadRequest(
                f"More than {PREFETCHES_A_MINUTE} prefetches a minute on this socket: send one when the user begins to "
                "type, not one a key",
                code="too_many_prefetches",
            )
        grant = await self.caller.grant()
        if model:
            check_model(grant, model)
        for name, worker in self.web.registry.keepers(affinity(grant.tenant_id, session)):
            if name == model or (not model and (not grant.models or name in grant.models)):
                worker.prefetch(grant.tenant_id, session)
        await self.say(events.server_event("session.prefetched", session=session))

    async def _refuse(self, error: ApiError) -> None:
        """Answer the handshake with the error's own status where the server can, else with 403."""
        if "websocket.http.response" not in self.scope.get("extensions", {}):
            await self.close()
            return
        headers = [(b"content-type", b"application/json"), *error.headers]
        await self.base_send({"type": "websocket.http.response.start", "status": error.status, "headers": headers})
        await self.base_send({"type": "websocket.http.response.body", "body": error.json()})
