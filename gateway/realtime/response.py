"""One response on a realtime socket: the same path as HTTP, told in events."""

import contextlib
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import structlog

from gateway.api.errors import ApiError, BadRequest, ClientLeft, InternalError, from_worker
from gateway.api.jobs import job_of
from gateway.api.logprobs import chat_logprobs
from gateway.api.reading import Reading, Told, readings
from gateway.api.running import chat_tokens, find_model, running
from gateway.api.tools.pieces import Content
from gateway.api.tools.plan import plan_of
from gateway.realtime import says
from gateway.realtime.asking import Ask
from gateway.realtime.callers import Caller
from gateway.realtime.conversation import Conversation
from gateway.realtime.naming import of_response
from gateway.realtime.output import Output
from gateway.routing.route import Routed
from gateway.web import Web
from gateway.workers.errors import WorkerError
from gateway.workers.generation import Delta, Finished
from gateway.workers.model import Model
from tenants.contracts import KeyGrant

Say = Callable[[str], Awaitable[None]]

_log = structlog.get_logger("gateway.realtime")


class Cancelled(Exception):
    """The client cancelled the response."""


class Response:
    """Generates one response and tells its events through `say`."""

    def __init__(self, web: Web, caller: Caller, ask: Ask, conversation: Conversation, say: Say) -> None:
        name = uuid.uuid4().hex
        self.id = f"resp_{name}"
        self._request_id = f"req_{name}"
        self._web = web
        self._caller = caller
        self._ask = ask
        self._conversation = conversation
        self._say = say
        self._output = Output(self.id, conversation.last_id, joins=ask.joins)
        self._grant: KeyGrant | None = None
        self._ending: Exception | None = None
        self._fail: Callable[[Exception], None] | None = None

    def end(self, error: Exception) -> None:
        """End early; the worker is told at once."""
        self._ending = self._ending or error
        if self._fail is not None:
            self._fail(self._ending)

    async def run(self) -> None:
        """Generate to the end. Every end but a client's leave is a `response.done`."""
        began = time.monotonic()
        status = "left"
        try:
            await self._say(says.event("response.created", response=says.response_object(self._head(), "in_progress")))
            done = await self._outcome()
            status = str(done["status"])
            await self._say(says.event("response.done", response=done))
            await self._tell_rates()
        except ClientLeft:
            return
        finally:
            self._note(status, began)

    async def _outcome(self) -> dict[str, Any]:
        """Generate, and return the response as it ended; what it gave joins the conversation, unless it failed."""
        try:
            end = await self._generate()
        except Cancelled:
            await self._close("incomplete")
            self._join()
            return says.cancelled(self._head(), self._output.objects())
        except (ApiError, WorkerError) as error:
            return await self._failed(error if isinstance(error, ApiError) else from_worker(error))
        except ClientLeft:
            raise
        except Exception:  # noqa: BLE001  # a defect ends one response, not the socket and its others
            _log.exception("response_failed", response=self.id)
            return await self._failed(InternalError())
        await self._close("completed" if says.is_complete(end) else "incomplete", end=True)
        self._join()
        return says.finished(self._head(), self._output.objects(), end)

    async def _generate(self) -> Finished:
        self._grant = grant = await self._caller.grant()
        request = self._ask.request
        model = find_model(self._web, grant, request.model, request.session)
        prompts = [await chat_tokens(model, request)]
        job = job_of(request, model, prompts=prompts, request_id=self._request_id, field="messages")
        async with running(self._web, grant, job) as started:
            run = started.runs[0]
            self._fail = run.fail
            if self._ending is not None:
                run.fail(self._ending)
            await self._tell_rates()
            return await self._read(run, model)

    async def _read(self, run: Routed, model: Model) -> Finished:
        """Tell what a run generates, to its end."""
        plan = plan_of(self._ask.request, model)
        make = readings(self._ask.request, model, plan)
        reading = Reading(None, None) if make is None else make()
        while True:
            event = await run.next()
            if isinstance(event, Delta):
                await self._tell(self._of(reading.push(event), model))
            elif isinstance(event, Finished):
                await self._tell(self._of(reading.finish(event.text, event.reason), model))
                return event

    def _of(self, told: Told, model: Model) -> list[str]:
        """Return the events of what can be told next. Scores are those of texts: a call has no place for any."""
        said: list[str] = []
        scores = chat_logprobs(told.scored, model.vocabulary)["content"] if told.scored else ()
        for piece in told.pieces:
            if scores and isinstance(piece, Content):
                said += self._output.text(piece.text, scores)
                scores = ()
            else:
                said += self._output.take(piece)
        return said + (self._output.text("", scores) if scores and self._output.is_text else [])

    async def _failed(self, error: ApiError) -> dict[str, Any]:
        of_response(error, self._ask.source)
        await self._close("incomplete")
        return says.failed(self._head(), self._output.objects(), error)

    async def _close(self, status: str, *, end: bool = False) -> None:
        """Close the item that is open; `end`: a response that has said nothing has an empty message."""
        if end and self._output.is_empty:
            await self._tell(self._output.text(""))
        await self._tell(self._output.close(status))

    def _join(self) -> None:
        if self._ask.joins:
            with contextlib.suppress(BadRequest):  # there is no room for it: the client has it all the same
                for item in self._output.items:
                    self._conversation.add(item)

    async def _tell(self, said: list[str]) -> None:
        for event in said:
            await self._say(event)

    async def _tell_rates(self) -> None:
        if self._grant is not None:
            await self._say(says.rate_limits(self._web.admission.rates(self._grant, time.monotonic())))

    def _head(self) -> dict[str, Any]:
        """Return what the response has from its beginning on."""
        request = self._ask.request
        return {
            "id": self.id,
            "object": "realtime.response",
            "model": request.model,
            "conversation_id": self._conversation.id if self._ask.joins else None,
            "output_modalities": ["text"],
            "max_output_tokens": request.limit or "inf",
            "metadata": request.metadata,
        }

    def _note(self, status: str, began: float) -> None:
        grant = self._grant
        _log.info(
            "response",
            request_id=self._request_id,
            status=status,
            ms=round((time.monotonic() - began) * 1000, 1),
            model=self._ask.request.model[:200],
            **({} if grant is None else {"tenant": grant.tenant_slug, "key": grant.key_id}),
        )
