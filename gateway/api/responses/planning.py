"""From a parsed request to what is to be generated and what is to be kept: one plan, whichever way it is answered."""

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec

from gateway.api.errors import BadRequest, ContextTooLong
from gateway.api.jobs import Job, job_of
from gateway.api.reading import Reading, readings
from gateway.api.responses.context import context_items
from gateway.api.responses.conversation import cuts, messages_of
from gateway.api.responses.document import Document, Ending, Step
from gateway.api.responses.items import MAX_ITEMS, Item
from gateway.api.responses.objects import head_of
from gateway.api.responses.request import ResponseRequest
from gateway.api.responses.scribe import Scribe
from gateway.api.running import ASSUMED_OUTPUT, chat_tokens, find_model
from gateway.api.sampling import Sampling
from gateway.api.schemas import ChatRequest
from gateway.api.tools.plan import plan_of
from gateway.web import Web
from gateway.workers.model import Model
from tenants.contracts import KeyGrant, ResponseOwner

MOST_KEPT_BYTES = 1 << 20  # of what goes into a response that is stored

_LARGE = ("input", "instructions", "tools", "text", "metadata", "user")
_NOT_SHARED = {"stream", "stream_options", "max_tokens", "response_format"}
_SHARED = [name for name in Sampling.__struct_fields__ if name not in _NOT_SHARED]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A response that is to be generated. `document` is what is known of it before."""

    id: str
    owner: ResponseOwner
    job: Job
    document: Document
    reading: Callable[[], Reading]
    stored: bool
    padded: bool  # the events of its stream hide how long their deltas are

    def scribe(self) -> Scribe:
        """Return what writes its output down."""
        return Scribe(self.reading(), self.job.model.vocabulary)

    def document_of(self, steps: tuple[Step, ...], ending: Ending | None) -> Document:
        """Return the document with what has come out."""
        return msgspec.structs.replace(self.document, steps=steps, ending=ending)


def _plain() -> Reading:
    return Reading(None, None)


async def plan_response(web: Web, grant: KeyGrant, request: ResponseRequest, *, request_id: str) -> Plan:
    """Return what a request asks for.

    Raises:
        ModelNotFound, ContextTooLong, BadRequest: it can't be served; the error names the field.
        RateLimited, Overloaded: what it goes on from can't be read just now.
    """
    response_id = f"resp_{uuid.uuid4().hex}"
    owner = ResponseOwner(grant.tenant_id, grant.project_id)
    model = find_model(web, grant, request.model, request.session)
    items = await context_items(web.responses, owner, request, response_id)
    tokens, items = await _fitting(model, request, items, _room(model, grant, request))
    document = Document(head=head_of(request, response_id=response_id, created_at=int(time.time())), input=items)
    if request.stored:
        web.responses.check_room(owner)
        _check_size(document, request)
    chat = chat_of(request, [])
    tools = plan_of(chat, model)
    return Plan(
        id=response_id,
        owner=owner,
        job=_job(request, chat, model, tokens, request_id),
        document=document,
        reading=readings(chat, model, tools) or _plain,
        stored=request.stored,
        padded=request.obfuscated,
    )


def chat_of(request: ResponseRequest, items: Sequence[Item]) -> ChatRequest:
    """Return the same request on the chat surface."""
    return ChatRequest(
        messages=messages_of(request.instructions, items),
        max_completion_tokens=request.max_output_tokens,
        logprobs=request.scored,
        top_logprobs=request.top_logprobs,
        tools=request.chat_tools,
        tool_choice=request.chat_choice,
        parallel_tool_calls=request.parallel_tool_calls,
        **{name: getattr(request, name) for name in _SHARED},
    )


def _job(request: ResponseRequest, chat: ChatRequest, model: Model, tokens: list[int], request_id: str) -> Job:
    asked = None if request.text is None else request.text.asked()
    job = job_of(chat, model, prompts=[tokens], request_id=request_id, field="input", asked=asked)
    scores = "top_logprobs" if request.top_logprobs else "include"
    names = {**job.names, "max_tokens": "max_output_tokens", "logprobs": scores}
    return replace(job, limit_field="max_output_tokens" if request.max_output_tokens else "", names=names)


def _room(model: Model, grant: KeyGrant, request: ResponseRequest) -> int:
    """Return how many tokens the input may have where what is too much of it is dropped."""
    limit = min(model.max_context, grant.policy.max_context)
    wanted = request.max_output_tokens or min(ASSUMED_OUTPUT, grant.policy.max_output, limit // 4)
    return max(limit - wanted, 0)


async def _fitting(
    model: Model, request: ResponseRequest, items: list[Item], room: int
) -> tuple[list[int], list[Item]]:
    """Return the tokens of the input and the items that they are of: with `truncation` auto, of as many as fit.

    Raises:
        BadRequest: the model's template rejects the items, or there are too many.
        ContextTooLong: not even the newest ones fit.
    """
    if request.truncation != "auto":
        return await _tokens(model, request, items), items
    tokens = await _within(model, request, items, room)
    if tokens is not None:
        return tokens, items
    choices = cuts(items)
    fitting: tuple[list[int], list[Item]] | None = None
    first, last = 0, len(choices)
    while first < last:  # the longest that fits: what is shorter fits too
        middle = (first + last) // 2
        tokens = await _within(model, request, choices[middle], room)
        if tokens is None:
            first = middle + 1
        else:
            fitting, last = (tokens, choices[middle]), middle
    if fitting is None:
        raise ContextTooLong(
            f"`input` doesn't fit even without its oldest items: beside the output it may have {room} tokens. Shorten "
            "it, or lower `max_output_tokens`",
            param="input",
        )
    return fitting


async def _within(model: Model, request: ResponseRequest, items: list[Item], room: int) -> list[int] | None:
    try:
        tokens = await _tokens(model, request, items)
    except ContextTooLong:
        return None
    return tokens if len(tokens) <= room else None


async def _tokens(model: Model, request: ResponseRequest, items: list[Item]) -> list[int]:
    if len(items) > MAX_ITEMS:
        raise ContextTooLong(
            f"The context has {len(items)} items, and it may have {MAX_ITEMS}: begin a new conversation, or set "
            "`truncation` to `auto`",
            param=_source(request),
        )
    try:
        return await chat_tokens(model, chat_of(request, items))
    except BadRequest as error:
        if error.param != "messages":
            raise
        raise type(error)(
            error.message.replace("`messages`", "`input`"), param="input", code=error.error_code
        ) from error


def _check_size(document: Document, request: ResponseRequest) -> None:
    size = len(msgspec.json.encode(document))
    if size <= MOST_KEPT_BYTES:
        return
    sizes = {name: len(msgspec.json.encode(getattr(request, name))) for name in _LARGE}
    sizes["previous_response_id"] = len(msgspec.json.encode(document.input)) - sizes["input"]
    field = max(sizes, key=lambda name: sizes[name])
    raise BadRequest(
        f"What goes in has {size} bytes, most of it by `{field}`, and of a response that is stored it may have "
        f"{MOST_KEPT_BYTES}: shorten it, or set `store` to false",
        param=field,
        code="response_too_large",
    )


def _source(request: ResponseRequest) -> str:
    """Return the field that most of a context comes from."""
    return "input" if request.previous_response_id is None else "previous_response_id"
