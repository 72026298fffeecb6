"""`POST /v1/chat/completions`. START HERE: authenticate, parse, tokenise, admit, route, stream."""

import time

from gateway.api.auth import bearer, check
from gateway.api.errors import BadRequest
from gateway.api.exchange import Exchange, Watching
from gateway.api.respond import answer
from gateway.api.running import chat_tokens, find_model, job_of, running
from gateway.api.schemas import parse_chat
from gateway.api.shapes import ChatShape, Head
from gateway.workers.model import Model
from tenants.contracts import KeyGrant


async def chat_completions(exchange: Exchange) -> None:
    """Answer one chat request."""
    grant = await authenticate(exchange, scope="generate")
    request = parse_chat(await exchange.body())
    if request.tools and request.tool_choice != "none":
        raise BadRequest("`tools` isn't supported: leave it out", param="tools")
    async with Watching(exchange):
        model = find_model(exchange.web, grant, request.model, request.session)
        prompts = [await chat_tokens(model, request)]
        job = job_of(request, model, prompts=prompts, request_id=exchange.request_id, field="messages")
        shape = ChatShape(head(exchange, model, "chatcmpl"), request.include_usage)
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
    return grant


def head(exchange: Exchange, model: Model, prefix: str) -> Head:
    """Return what all chunks of a response share."""
    exchange.noted["model"] = model.name
    return Head(
        id=f"{prefix}-{exchange.request_id.removeprefix('req_')}",
        created=int(time.time()),
        model=model.name,
        fingerprint=f"fp_{model.digest[:10]}",
    )
