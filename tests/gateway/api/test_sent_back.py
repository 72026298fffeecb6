"""What SDKs add to the answers that they send back in a chat: it is taken by name, and the model sees none of it."""

import json
from typing import Any

import pytest

from gateway.api.errors import BadRequest
from gateway.api.schemas import MAX_PARTS, ChatRequest, parse_chat

ASK = {"role": "user", "content": "Is it high tide?"}
FUNCTION = {"name": "tide", "arguments": '{"up": true}'}
CALL = {"id": "c", "type": "function", "function": FUNCTION}
RESULT = {"role": "tool", "tool_call_id": "c", "content": "yes"}


def read(*messages: Any) -> ChatRequest:
    """Read a request with these messages."""
    return parse_chat(json.dumps({"model": "tiny", "messages": [ASK, *messages]}).encode())


def refusal(*messages: Any) -> BadRequest:
    """Return how such a request is refused."""
    with pytest.raises(BadRequest) as caught:
        read(*messages)
    return caught.value


@pytest.mark.parametrize("parsed", [None, {"up": True}, [1], "text", 1.5], ids=str)
def test_what_a_message_was_parsed_to(parsed: object) -> None:
    """`parsed`, of whatever kind, changes nothing."""
    message = {"role": "assistant", "content": '{"up": true}'}
    empty = {"refusal": None, "audio": None, "function_call": None, "annotations": [], "tool_calls": None}
    assert read(message | empty | {"parsed": parsed}).conversation() == read(message).conversation()


@pytest.mark.parametrize("parsed", [None, {"up": True}], ids=str)
def test_what_arguments_were_parsed_to(parsed: object) -> None:
    """`parsed_arguments` and the `index` that a stream had change nothing, in the template's view either."""
    call = CALL | {"index": 0, "function": FUNCTION | {"parsed_arguments": parsed}}
    given = read({"role": "assistant", "content": None, "tool_calls": [call]}, RESULT)
    assert given.conversation() == read({"role": "assistant", "tool_calls": [CALL]}, RESULT).conversation()
    assert given.conversation()[1]["tool_calls"] == [CALL]


def test_only_the_assistant_is_parsed() -> None:
    """Who puts `parsed` where no SDK does is told so."""
    error = refusal(ASK | {"parsed": {"up": True}})
    assert error.param == "messages[1].parsed"
    assert "`assistant`" in error.message


def test_parts_of_a_message_are_bounded() -> None:
    """A message of more parts than anybody writes is refused by name."""
    parts = [{"type": "text", "text": "x"}] * MAX_PARTS
    assert read(ASK | {"content": parts}).messages[1].text().count("x") == MAX_PARTS
    assert refusal(ASK | {"content": [*parts, parts[0]]}).param == "messages[1].content"
