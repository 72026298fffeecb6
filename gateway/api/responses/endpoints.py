"""`/v1/responses`: create one, and look after those that are stored.

POST   /v1/responses
GET    /v1/responses/{id}                  `include`; `stream`, `starting_after` of one in the background
DELETE /v1/responses/{id}
POST   /v1/responses/{id}/cancel           one in the background
GET    /v1/responses/{id}/input_items      `limit`, `order`, `after`
POST   /v1/responses/input_tokens          what a request would have to read

Another project's response is as one that isn't there.
"""

import time
from collections.abc import Callable
from typing import Any

from gateway.api.chat import authenticate, received
from gateway.api.errors import BadRequest, NotFound, Overloaded
from gateway.api.exchange import Exchange, Watching
from gateway.api.idempotency import once
from gateway.api.responses.answering import collect, stream
from gateway.api.responses.background import BackgroundRun
from gateway.api.responses.document import decoded
from gateway.api.responses.following import Follower, Here, Source, Stored
from gateway.api.responses.items import Item, is_response_id
from gateway.api.responses.narrator import response_of
from gateway.api.responses.objects import item_list, without_scores
from gateway.api.responses.planning import Plan, plan_response
from gateway.api.responses.query import Query
from gateway.api.responses.request import LOGPROBS, ResponseRequest, check_include, parse_response
from gateway.api.running import running
from tenants import errors as domain
from tenants.contracts import KeyGrant, ResponseOwner, ResponseRecord
from tenants.services import responses as services


async def create_response(exchange: Exchange) -> None:
    """Generate a response."""
    grant = await authenticate(exchange, scope="generate")
    request, entry = await received(exchange, grant, parse_response)
    async with Watching(exchange), once(exchange, entry) as due:
        if due:
            await _create(exchange, grant, request)


async def count_input_tokens(exchange: Exchange) -> None:
    """Say how many tokens a request's input has."""
    grant = await authenticate(exchange, scope="generate")
    counting = exchange.web.counting
    async with counting.call(grant) as permit:
        body = await exchange.body()
        with counting.turn(grant.tenant_id, len(body)):
            plan = await plan_response(exchange.web, grant, parse_response(body), request_id=exchange.request_id)
        [prompt] = plan.job.prompts
        exchange.headers += permit.headers(time.monotonic())
        await exchange.json({"object": "response.input_tokens", "input_tokens": len(prompt)})


async def retrieve_response(exchange: Exchange) -> None:
    """Show a response, or stream one in the background."""
    grant = await authenticate(exchange, scope="generate")
    query = Query(exchange, ("include", "include_obfuscation", "starting_after", "stream"))
    include = query.texts("include")
    check_include(include)
    after = query.number("starting_after", least=0)
    streamed, padded = query.flag("stream"), query.flag("include_obfuscation")
    if after is not None and not streamed:
        raise BadRequest("`starting_after` belongs to a stream: set `stream` to true", param="starting_after")
    owner = _owner(grant)
    record = await _found(exchange, owner)
    document = decoded(record)
    if not streamed:
        response = response_of(document)
        await exchange.json(response if LOGPROBS in include else without_scores(response))
        return
    if not record.background:
        raise BadRequest(
            "`stream` is for responses in the background: this one was told when it was created", param="stream"
        )
    if exchange.web.drain.draining:
        raise Overloaded("The server is restarting. Try again.")
    run = exchange.web.responses.running(owner, record.id)
    source: Source = Here(run) if isinstance(run, BackgroundRun) else Stored(exchange.web.responses, owner, record)
    async with Watching(exchange):
        follower = Follower(exchange, source, head=document.head, after=-1 if after is None else after, padded=padded)
        await follower.follow()


async def cancel_response(exchange: Exchange) -> None:
    """Cancel a response in the background; one that has ended is shown as it is."""
    grant = await authenticate(exchange, scope="generate")
    try:
        record = await _changed(exchange, _owner(grant), services.cancel)
    except domain.Conflict as error:
        raise BadRequest(
            "This response doesn't run in the background: close its connection to end it", param="response_id"
        ) from error
    await exchange.json(without_scores(response_of(decoded(record))))


async def delete_response(exchange: Exchange) -> None:
    """Delete a response."""
    grant = await authenticate(exchange, scope="generate")
    await _changed(exchange, _owner(grant), services.delete)
    await exchange.json({"id": _id(exchange), "object": "response", "deleted": True})


async def list_input_items(exchange: Exchange) -> None:
    """List the items of a response's whole context, the newest first unless `order` says `asc`."""
    grant = await authenticate(exchange, scope="generate")
    query = Query(exchange, ("limit", "order", "after", "include"))
    if query.texts("include"):
        raise BadRequest(
            "`include` has nothing to add to items that went in: retrieve the response that they came out of",
            param="include",
        )
    limit = query.number("limit", least=1, most=100)
    order = query.choice("order", ("asc", "desc"))
    record = await _found(exchange, _owner(grant))
    items = decoded(record).input
    page, has_more = _page(items if order == "asc" else items[::-1], 20 if limit is None else limit, query)
    await exchange.json(item_list(page, has_more=has_more))


async def _create(exchange: Exchange, grant: KeyGrant, request: ResponseRequest) -> None:
    plan = await plan_response(exchange.web, grant, request, request_id=exchange.request_id)
    exchange.noted |= {"model": request.model, "response_id": plan.id}
    if request.background:
        await _in_background(exchange, grant, plan, streamed=bool(request.stream))
        return
    async with running(exchange.web, grant, plan.job) as started:
        await (stream if request.stream else collect)(exchange, plan, started)


async def _in_background(exchange: Exchange, grant: KeyGrant, plan: Plan, *, streamed: bool) -> None:
    run = BackgroundRun(exchange.web, grant, plan)
    exchange.headers += await run.start()
    if streamed:
        await Follower(exchange, Here(run), head=plan.document.head, after=-1, padded=plan.padded).follow()
    else:
        await exchange.json(response_of(plan.document))  # as it was stored, however far it has come since


async def _found(exchange: Exchange, owner: ResponseOwner) -> ResponseRecord:
    record = await exchange.web.responses.find(owner, _id(exchange))
    if record is None:
        raise _unknown(exchange)
    return record


async def _changed(exchange: Exchange, owner: ResponseOwner, service: Callable[..., Any]) -> Any:
    try:
        return await exchange.web.responses.run(owner, service, owner=owner, response_id=_id(exchange))
    except domain.NotFound as error:
        raise _unknown(exchange) from error


def _owner(grant: KeyGrant) -> ResponseOwner:
    return ResponseOwner(grant.tenant_id, grant.project_id)


def _id(exchange: Exchange) -> str:
    """Return the id in the path; of no other form is there a response."""
    response_id: str = exchange.scope["path_params"]["response_id"]
    if not is_response_id(response_id):
        raise _unknown(exchange)
    return response_id


def _unknown(exchange: Exchange) -> NotFound:
    response_id = exchange.scope["path_params"]["response_id"]
    return NotFound(
        f"Response with id '{response_id[:128]}' not found: it was never stored, its time is over, or it was deleted.",
        param="response_id",
        code="response_not_found",
    )


def _page(items: list[Item], limit: int, query: Query) -> tuple[list[Item], bool]:
    after = query.text("after")
    start = 0
    if after is not None:
        places = [place for place, item in enumerate(items) if item["id"] == after]
        if not places:
            raise BadRequest("`after` is no item of this list: take the `last_id` of the page before", param="after")
        start = places[0] + 1
    return items[start : start + limit], start + limit < len(items)
