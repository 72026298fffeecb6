"""Reading of bodies: one pass where all is well, and little work where it isn't."""

import json
from typing import Any

import pytest

from gateway.api.decode import convert
from gateway.api.errors import BadRequest
from gateway.api.schemas import CHAT_OFF, ChatRequest, parse_chat, parse_completion

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "x"}]}


def chat(**fields: Any) -> bytes:
    """Return a chat's body."""
    return json.dumps(CHAT | fields).encode()


def refusal(body: bytes) -> BadRequest:
    """Return why a chat's body is refused."""
    with pytest.raises(BadRequest) as caught:
        parse_chat(body)
    return caught.value


@pytest.mark.parametrize(
    "fields",
    [
        {"store": False, "modalities": ["text"]},
        {"store": None, "audio": None, "prediction": None},
        {"functions": [], "function_call": "none", "verbosity": "medium"},
    ],
)
def test_fields_that_are_off_change_nothing(fields: dict[str, Any]) -> None:
    """What isn't served may be there at the value that means "off", wherever it stands."""
    assert parse_chat(chat(**fields)) == parse_chat(chat())
    assert parse_chat(json.dumps(fields | CHAT).encode()) == parse_chat(chat())


def test_field_that_is_not_off_is_named() -> None:
    """At any other value it is refused by name, with the value that it may have."""
    error = refusal(chat(store=True))
    assert (error.param, "false" in error.message) == ("store", True)
    assert refusal(chat(audio={"voice": "x"})).param == "audio"
    assert refusal(chat(store=0)).param == "store"


def test_fault_beside_a_field_that_is_off_is_named() -> None:
    """A field that is off hides no other fault."""
    assert refusal(chat(store=False, temperature="hot")).param == "temperature"
    assert refusal(chat(store=False, colour="red")).error_code == "unknown_field"


@pytest.mark.parametrize(
    "value",
    [
        b"[" + b"[]," * 300_000 + b"[]]",
        b"[" * 200 + b"]" * 200,
        b'"' + b"x" * 300_000 + b'"',
        b"[" + b'"a",' * 1_000_000 + b'"a"]',
        b"{" + b",".join(b'"%d":1' % number for number in range(200_000)) + b"}",
    ],
    ids=["lists", "deep", "long", "texts", "keys"],
)
@pytest.mark.parametrize(
    "name", ["stop", "store", "audio", "metadata", "logit_bias", "stop_token_ids", "colour", "response_format", "tools"]
)
def test_value_that_nobody_can_use_is_refused_by_name(name: str, value: bytes) -> None:
    """A value of any size and shape in any field is refused, and its field named."""
    error = refusal(chat()[:-1] + f', "{name}": '.encode() + value + b"}")
    assert (error.param or "").split(".")[0].split("[")[0] == name


def test_keys_of_a_bias_are_token_ids() -> None:
    """JSON has texts as keys; they are read as numbers, and what is none is refused under the field's name."""
    assert parse_completion(b'{"model": "m", "prompt": "x", "logit_bias": {"50256": -100}}').logit_bias == {50256: -100}
    assert refusal(chat(logit_bias={"x": 1})).param == "logit_bias.x"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"metadata": {"a": "b", "k": "v" * 513, "l": 1}}, "metadata.k"),
        ({"metadata": {"a": "b", "k" * 100: "v"}}, "metadata." + "k" * 80),
        ({"metadata": {"a": 1}, "store": False}, "metadata.a"),
        ({"logit_bias": {"5": 1, "6": 101}}, "logit_bias.6"),
        ({"logit_bias": {"5": 1, "-6": 1}}, "logit_bias.-6"),
        ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
        ({"metadata": {"": 1}}, "metadata[...]"),
    ],
    ids=str,
)
def test_fault_in_a_map_is_named_by_its_key(fields: dict[str, Any], param: str) -> None:
    """Of a map the first entry that is wrong is named, in the message too; a map of a wrong size as such."""
    error = refusal(chat(**fields))
    assert error.param == param
    assert f"`{param}`" in error.message
    with pytest.raises(BadRequest) as caught:
        convert(CHAT | fields, ChatRequest, CHAT_OFF)
    assert caught.value.param == param


def test_fault_in_the_first_of_two_maps_is_a_refusal() -> None:
    """Only the last of two fields with one name is looked at for the key."""
    for last in ('"x"', '{"a": "b"}', "null"):
        body = chat()[:-1] + f', "metadata": {{"k": 1}}, "metadata": {last}}}'.encode()
        assert refusal(body).param == "metadata[...]"


def test_last_of_two_fields_with_one_name_counts() -> None:
    """As JSON readers have it."""
    assert parse_chat(b'{"store": true, ' + chat(store=False)[1:]).model == "m"


@pytest.mark.parametrize(
    "body", [b"", b"{", b"nul", b'{"model": "\xff"}', b'{"a": "\xff"}', b"\xef\xbb\xbf{}", b"[1]", b"1"]
)
def test_what_is_no_json_object(body: bytes) -> None:
    """Is refused without the name of a field."""
    assert refusal(body).param in (None, "a", "model")
