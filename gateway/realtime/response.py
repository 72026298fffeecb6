"""One response on a realtime socket: the same path as HTTP, told in events."""

import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace

import structlog

from gateway.api.errors import ApiError, ClientLeft, InternalError, from_worker
from gateway.api.running import chat_tokens, find_model, job_of, running
from gateway.api.schemas import ChatRequest
from gateway.realtime import events
from gateway.realtime.callers import Caller
from gateway.web import Web
from gateway.workers.errors import WorkerError
from gateway.workers.generation import Delta, Event, Finished

Say = Callable[[str], Awaitable[None]]

_log = structlog.get_logger("gateway.realtime")


class Cancelled(Exception):
    """The client cancelled the response."""


class Response:
    """Generates one response and tells its events through `say`."""

    def __init__(self, web: Web, caller: Caller, request: ChatRequest, say: Say) -> None:
        self.id = f"resp_{uuid.uuid4().hex}"
        self._web = web
        self._caller = caller
        self._request = request
        self._say = say
        self._text: list[str] = []
        self._ending: Exception | None = None
        self._fail: Callable[[Exception], None] | None = None

    def end(self, error: Exception) -> None:
        """End early; the worker is told at once."""
        self._ending = self._ending or error
        if self._fail is not None:
            self._fail(self._ending)

    async def run(self) -> None:
        """Generate to the end. Every end but a client's leave is a `response.done`."""
        await self._say(events.server_event("response.created", response=self._object("in_progress")))
        try:
            end = await self._generate()
            done = events.finished_object(self.id, self._request.model, self._so_far(), end)
        except ClientLeft:
            return
        except Cancelled:
            done = events.cancelled_object(self.id, self._request.model, self._so_far())
        except (ApiError, WorkerError) as error:
            done = self._failed(error if isinstance(error, ApiError) else from_worker(error))
        except Exception:  # noqa: BLE001  # a defect ends one response, not the socket and its others
            _log.exception("response_failed", response=self.id)
            done = self._failed(InternalError())
        await self._say(events.server_event("response.done", response=done))

    async def _generate(self) -> Finished:
        web, request = self._web, self._request
        grant = await self._caller.grant()
        model = find_model(web, grant, request.model, request.session)
        job = job_of(
            request,
            model,
            prompts=[await chat_tokens(model, request)],
            request_id=f"req_{self.id.removeprefix('resp_')}",
            field="response.input",
        )
        limit_field = "max_output_tokens" if request.max_completion_tokens else "max_tokens"
        job = replace(job, limit_field=f"response.{limit_field}")
        async with running(web, grant, job) as started:
            run = started.runs[0]
            self._fail = run.fail
            if self._ending is not None:
                run.fail(self._ending)
            event: Event | None = None
            while not isinstance(event, Finished):
                event = await run.next()
                if isinstance(event, Delta | Finished) and event.text:
                    await self._tell(event.text)
        return event

    async def _tell(self, text: str) -> None:
        self._text.append(text)
        delta = events.server_event(
            "response.output_text.delta", response_id=self.id, output_index=0, content_index=0, delta=text
        )
        await self._say(delta)

    def _so_far(self) -> str:
        return "".join(self._text)

    def _object(self, status: str) -> dict[str, object]:
        return events.response_object(self.id, self._request.model, status)

    def _failed(self, error: ApiError) -> dict[str, object]:
        return events.failed_object(self.id, self._request.model, self._so_far(), error)
