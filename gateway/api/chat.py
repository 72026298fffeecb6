"""`POST /v1/chat/completions`. START HERE: authenticate, parse, tokenise, admit, route, stream."""

import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from gateway.api.auth import bearer, check, check_model
from gateway.api.exchange import Exchange, Watching
from gateway.api.idempotency import entry_of, once
from gateway.api.jobs import job_of
from gateway.api.kept import Entry
from gateway.api.reading import readings
from gateway.api.respond import answer
from gateway.api.running import chat_tokens, find_model, running
from gateway.api.sampling import Generating
from gateway.api.schemas import ChatRequest, parse_chat
from gateway.api.shapes import ChatShape, Head
from gateway.api.tools.plan import plan_of
from gateway.workers.model import Model
from tenants.contracts import KeyGrant


class Named(Protocol):
    """A request that names its model."""

    model: str


Request = TypeVar("Request", bound=Named)


async def chat_completions(exchange: Exchange) -> None:
    """Answer one chat request."""
    grant = await authenticate(exchange, scope="generate")
    request, entry = await received(exchange, grant, parse_chat)
    async with Watching(exchange), once(exchange, entry) as due:
        if due:
            await _serve(exchange, grant, request)


async def _serve(exchange: Exchange, grant: KeyGrant, request: ChatRequest) -> None:
    model = find_model(exchange.web, grant, request.model, request.session)
    prompts = [await chat_tokens(model, request)]
    job = job_of(request, model, prompts=prompts, request_id=exchange.request_id, field="messages")
    plan = plan_of(request, model)
    reading = readings(request, model, plan)
    shape = ChatShape(head(exchange, model, request, "chatcmpl"), model.vocabulary, reading, plan)
    async with running(exchange.web, grant, job) as started:
        await answer(exchange, started, shape, streamed=bool(request.stream))


async def authenticate(exchange: Exchange, *, scope: str) -> KeyGrant:
    """Return the caller's grant.

    Raises:
        InvalidKey, Forbidden: the key doesn't allow this request.
        Overloaded: the key is new here and Postgres can't be asked.
    """
    grant = await exchange.web.keys.grant(bearer(exchange.scope["headers"]))
    exchange.noted |= {"tenant": grant.tenant_slug, "key": grant.key_id}
    check(grant, scope=scope, client=exchange.client, now=time.time())
    exchange.tenant_id = grant.tenant_id
    return grant


async def received(
    exchange: Exchange, grant: KeyGrant, parse: Callable[[bytearray], Request]
) -> tuple[Request, Entry | None]:
    """Return the request, and what its Idempotency-Key asks for, if it has one. Raises as `parse` and `entry_of`.

    A caller whose requests are used up is refused before its body is read.
    """
    await exchange.web.admission.check(grant, now=time.monotonic())
    body = await exchange.body()
    request, entry = parse(body), entry_of(exchange, grant, body)
    if entry is not None:
        check_model(grant, request.model)  # an answer that is kept may be another key's
    return request, entry


def head(exchange: Exchange, model: Model, request: Generating, prefix: str) -> Head:
    """Return what all chunks of a response share. `prefix` begins its id."""
    exchange.noted["model"] = model.name
    return Head(
        id=f"{prefix}-{exchange.request_id.removeprefix('req_')}",
        created=int(time.time()),
        model=model.name,
        fingerprint=f"fp_{model.digest[:10]}",
        tier=request.tier,
        include_usage=request.include_usage,
        padded=request.obfuscated,
        count=request.num_outputs,
    )
