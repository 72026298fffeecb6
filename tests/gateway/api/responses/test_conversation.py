"""Items as messages of a chat, and which of them go first when not all fit."""

from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.api.responses.conversation import cuts, messages_of
from gateway.api.responses.items import Item


def message(role: str, text: str) -> Item:
    """Return a message as it is kept."""
    kind = "output_text" if role == "assistant" else "input_text"
    return {"id": text, "type": "message", "role": role, "content": [{"type": kind, "text": text}]}


def call(call_id: str) -> Item:
    """Return a call."""
    return {"id": call_id, "type": "function_call", "call_id": call_id, "name": "f", "arguments": "{}"}


def output(call_id: str) -> Item:
    """Return what came of a call."""
    return {"id": f"o{call_id}", "type": "function_call_output", "call_id": call_id, "output": f"of {call_id}"}


def turns(instructions: str | None, items: list[Item]) -> list[dict[str, Any]]:
    """Return the messages as a template takes them."""
    return [one.turn() for one in messages_of(instructions, items)]


def test_instructions_come_first_as_the_systems() -> None:
    """A developer's message is the system's too, where it stands."""
    assert [(turn["role"], turn["content"]) for turn in turns("Be brief.", [message("developer", "d")])] == [
        ("system", "Be brief."),
        ("system", "d"),
    ]
    assert [turn["role"] for turn in turns(None, [message("user", "u")])] == ["user"]


def test_calls_of_one_turn_are_one_message() -> None:
    """They stand with the text before them; what came of each is a message of its own."""
    items = [message("user", "u"), message("assistant", "a"), call("1"), call("2"), output("1"), output("2"), call("3")]
    made = turns(None, items)
    assert [turn["role"] for turn in made] == ["user", "assistant", "tool", "tool", "assistant"]
    assert [one["id"] for one in made[1]["tool_calls"]] == ["1", "2"]
    assert (made[1]["content"], made[2]["content"], made[3]["tool_call_id"]) == ("a", "of 1", "2")
    assert [one["id"] for one in made[4]["tool_calls"]] == ["3"]


def test_the_oldest_turns_go_first() -> None:
    """What stays begins with a message of the user's; what the system said at the beginning stays always."""
    items = [message("system", "s"), message("user", "1"), call("c"), output("c"), message("user", "2")]
    assert [[item["id"] for item in left] for left in cuts(items)] == [["s", "1", "c", "oc", "2"], ["s", "2"]]


@given(st.lists(st.sampled_from(["system", "developer", "user", "assistant", "call"]), max_size=12))
def test_every_cut_is_an_end_of_the_whole(roles: list[str]) -> None:
    """Each is shorter than the one before, ends as the whole does, and no answer to a call has lost its call."""
    items: list[Item] = []
    for number, role in enumerate(roles):
        items += [call(str(number)), output(str(number))] if role == "call" else [message(role, str(number))]
    left = cuts(items)
    assert left[0] == items
    for longer, shorter in pairwise(left):
        assert 0 < len(shorter) < len(longer)
        assert shorter[-1] == items[-1]
        made = {item["call_id"] for item in shorter if item["type"] == "function_call"}
        assert all(item["call_id"] in made for item in shorter if item["type"] == "function_call_output")
