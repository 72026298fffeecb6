"""Items that SDKs send back: what they add is taken by name, and nothing of it is kept."""

from typing import Any

import pytest

from gateway.api.errors import BadRequest
from gateway.api.responses.items import MAX_PARTS, MAX_SCORES, FunctionCall, FunctionCallOutput, Message, read_items

CALL = {"type": "function_call", "call_id": "c", "name": "tide", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "c", "output": "yes"}


def kept(item: dict[str, Any]) -> Any:
    """Return an item as it is kept."""
    [given] = read_items([item])
    assert isinstance(given, Message | FunctionCall | FunctionCallOutput)
    return given.item("item_1")


def refusal(item: dict[str, Any]) -> BadRequest:
    """Return how an item is refused."""
    with pytest.raises(BadRequest) as caught:
        read_items([item])
    assert f"`{caught.value.param}`" in caught.value.message
    return caught.value


def message(*parts: Any, role: str = "assistant") -> dict[str, Any]:
    """Return a message of these parts."""
    return {"role": role, "content": list(parts)}


def output_text(**more: Any) -> dict[str, Any]:
    """Return a text that came out."""
    return {"type": "output_text", "text": "x"} | more


@pytest.mark.parametrize(
    ("item", "more"),
    [
        (CALL, {"async": None, "async_": None, "namespace": None, "caller": None, "created_by": None}),
        (CALL, {"async": False, "parsed_arguments": {"up": True}}),
        (CALL, {"async_": False, "parsed_arguments": None}),
        (RESULT, {"name": None, "namespace": None, "caller": None, "created_by": None}),
        (message(output_text()), {"phase": None, "status": "completed"}),
    ],
)
def test_what_an_sdk_adds_changes_nothing(item: dict[str, Any], more: dict[str, Any]) -> None:
    """Fields that are off, and the SDKs' own reading of arguments, are dropped."""
    assert kept(item | more) == kept(item)


def test_what_an_sdk_adds_to_parts_changes_nothing() -> None:
    """So are those of parts, log-probabilities and what the text was parsed to included."""
    scores = [{"token": "x", "logprob": -1.0, "bytes": [120], "top_logprobs": []}]
    dumped = output_text(annotations=[], logprobs=scores, parsed={"up": True})
    assert kept(message(dumped)) == kept(message(output_text()))
    text = {"type": "input_text", "text": "x"}
    given = message(text | {"prompt_cache_breakpoint": None}, role="user")
    assert kept(given) == kept(message(text, role="user"))


@pytest.mark.parametrize(
    ("item", "param"),
    [
        (CALL | {"async": True}, "input[0].async"),
        (CALL | {"async_": True}, "input[0].async"),
        (CALL | {"is_async": True}, "input[0].is_async"),
        (RESULT | {"name": "tide"}, "input[0].name"),
        (message({"type": "input_text", "text": "x", "prompt_cache_breakpoint": {"mode": "explicit"}}, role="user"),
         "input[0].content[0].prompt_cache_breakpoint"),
    ],
)  # fmt: skip
def test_what_isnt_served_is_named(item: dict[str, Any], param: str) -> None:
    """A field of those that is set is refused."""
    assert refusal(item).param == param


@pytest.mark.parametrize(
    ("most", "too_many", "param"),
    [
        (MAX_PARTS, lambda n: message(*[output_text()] * n), "input[0].content"),
        (MAX_PARTS, lambda n: RESULT | {"output": [{"type": "input_text", "text": "x"}] * n}, "input[0].output"),
        (MAX_SCORES, lambda n: message(output_text(logprobs=[{}] * n)), "input[0].content[0].logprobs"),
    ],
    ids=["parts", "parts of an output", "scores"],
)
def test_lists_are_bounded(most: int, too_many: Any, param: str) -> None:
    """A list may be as long as a long output makes it, and no longer."""
    kept(too_many(most))
    assert refusal(too_many(most + 1)).param == param
