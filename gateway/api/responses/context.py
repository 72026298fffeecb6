"""What a response goes on from: the items of the previous response, those that are referred to, and the new ones."""

import asyncio
from collections.abc import Mapping, Sequence

from gateway.api.errors import BadRequest
from gateway.api.responses.desk import ResponseDesk
from gateway.api.responses.document import decoded
from gateway.api.responses.items import (
    Given,
    Item,
    ItemReference,
    home_of,
    input_id,
    is_response_id,
    read_items,
)
from gateway.api.responses.narrator import response_of
from gateway.api.responses.objects import without_scores
from gateway.api.responses.request import ResponseRequest
from tenants.contracts import ResponseOwner, ResponseRecord

MAX_HOMES = 8  # responses that one request may refer to


async def context_items(
    desk: ResponseDesk, owner: ResponseOwner, request: ResponseRequest, response_id: str
) -> list[Item]:
    """Return the whole context of a response, in the form in which it is kept.

    Raises:
        BadRequest: an item is wrong, or what the request goes on from isn't there, or has come to no good end.
        RateLimited, Overloaded: stored responses can't be read just now.
    """
    given = read_items(request.input)
    known: list[Item] = []
    if request.previous_response_id is not None:
        known = await _previous_items(desk, owner, request.previous_response_id)
    found = await _referred(desk, owner, given, {item["id"]: item for item in known})
    items = [_item(one, number, found, response_id) for number, one in enumerate(given)]
    _check_answers(known + items, len(known))
    return known + items


def items_of(record: ResponseRecord) -> list[Item]:
    """Return the items that a stored response had in its context, and those that came out."""
    document = decoded(record)
    output: list[Item] = without_scores(response_of(document))["output"]
    return [*document.input, *output]


async def _previous_items(desk: ResponseDesk, owner: ResponseOwner, response_id: str) -> list[Item]:
    record = await desk.find(owner, response_id) if is_response_id(response_id) else None
    if record is None:
        raise BadRequest(
            f"Previous response with id '{response_id}' not found.",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    if record.status not in ("completed", "incomplete"):
        raise BadRequest(
            f"`previous_response_id` names a response that is {record.status}: go on from one that is completed",
            param="previous_response_id",
        )
    return await asyncio.to_thread(items_of, record)


async def _referred(
    desk: ResponseDesk, owner: ResponseOwner, given: Sequence[Given], known: Mapping[str, Item]
) -> Mapping[str, Item]:
    """Return the items by id that references may mean: those known, and those of the responses that named them."""
    wanted = {one.id for one in given if isinstance(one, ItemReference) and one.id not in known}
    homes = {home for item_id in wanted if (home := home_of(item_id)) is not None}
    if len(homes) > MAX_HOMES:
        raise BadRequest(
            f"`input` refers to items of {len(homes)} responses: {MAX_HOMES} at most, send the others whole",
            param="input",
        )
    records = await desk.find_all(owner, sorted(homes)) if homes else []
    lists = [await asyncio.to_thread(items_of, record) for record in records]
    return {item["id"]: item for items in lists for item in items} | dict(known)


def _item(one: Given, number: int, found: Mapping[str, Item], response_id: str) -> Item:
    if not isinstance(one, ItemReference):
        return one.item(input_id(one.type, response_id, number))
    item = found.get(one.id)
    if item is None:
        raise BadRequest(f"Item with id '{one.id}' not found.", param=f"input[{number}].id")
    return item


def _check_answers(items: Sequence[Item], num_known: int) -> None:
    """Refuse a call that isn't answered before the conversation goes on, and what came of a call that nobody made.

    Args:
        items: the whole context.
        num_known: so many of them, the first ones, are not the request's own.
    """
    waiting: set[str] = set()  # calls
    last = ""
    for place, item in enumerate(items):
        kind = item["type"]
        if kind == "function_call_output":
            if item["call_id"] not in waiting:
                raise BadRequest(
                    f"No tool call found for function call output with call_id {item['call_id']}.",
                    param=f"input[{place - num_known}].call_id",
                )
            waiting.remove(item["call_id"])
        elif waiting and (kind == "message" or last == "function_call_output"):
            break
        if kind == "function_call":
            waiting.add(item["call_id"])
        last = kind
    if waiting:
        raise BadRequest(
            f"No tool output found for function call {min(waiting)}: add a `function_call_output` to `input`, before "
            "what comes after the call",
            param="input",
        )
