"""Reading of bodies: one pass where all is well, and little work where it isn't."""

import json
from typing import Any

import msgspec
import pytest

from gateway.api import decode, embeddings, schemas, tokens
from gateway.api.decode import Reader, convert, num_values
from gateway.api.errors import BadRequest
from gateway.api.responses import request as responses
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


INTEGERS: dict[str, Any] = {
    "max_tokens": 7,
    "max_completion_tokens": 7,
    "n": 2,
    "seed": -3,
    "top_k": 10,
    "min_tokens": 1,
    "stop_token_ids": [1, 2],
}


@pytest.mark.parametrize("name", INTEGERS)
def test_number_without_a_fraction_is_an_integer(name: str) -> None:
    """Clients with one kind of number write 1.0, or 1e1; decoded JSON is read in the same way."""
    value = INTEGERS[name]
    written = json.dumps([float(one) for one in value] if isinstance(value, list) else float(value))
    body = chat()[:-1] + f', "temperature": 0.5, "{name}": {written}}}'.encode()
    expected = parse_chat(chat(temperature=0.5, **{name: value}))
    assert parse_chat(body) == expected
    assert type(getattr(parse_chat(body), name)) is type(value)
    if not isinstance(value, list):
        assert convert(json.loads(body), ChatRequest, CHAT_OFF) == expected


def test_integers_in_lists_may_be_written_so_too() -> None:
    """Token ids are integers wherever they stand, and fields that are off change nothing of that."""
    assert parse_completion(b'{"model": "m", "prompt": [[1.0, 2], [3e0]]}').prompt == [[1, 2], [3]]
    assert parse_completion(b'{"model": "m", "prompt": [1.0, 2], "suffix": null}').prompt == [1, 2]
    assert parse_chat(chat(store=False)[:-1] + b', "n": 2.0}').n == 2


@pytest.mark.parametrize(
    ("field", "param"),
    [
        ('"n": 1.5', "n"),
        ('"n": 0.0', "n"),
        ('"n": 129.0', "n"),
        ('"n": "1.0"', "n"),
        ('"n": 1e400', "n"),
        ('"n": true', "n"),
        ('"seed": 1e30', "seed"),
        ('"max_tokens": 2147483648.0', "max_tokens"),
        ('"stop_token_ids": [1.0, 2.5]', "stop_token_ids[0]"),
        ('"stop_token_ids": ["1"]', "stop_token_ids[0]"),
        ('"stream": 1.0', "stream"),
        ('"metadata": {"a": 1.0}', "metadata.a"),
        ('"n": 1.0, "colour": "red"', "colour"),
        ('"n": 1.0, "store": true', "store"),
    ],
)
def test_number_that_is_no_integer_is_refused_by_name(field: str, param: str) -> None:
    """A fraction, a text and a truth value are none; bounds hold however a number is written."""
    error = refusal(chat()[:-1] + f", {field}}}".encode())
    assert error.param == param
    assert f"`{param}`" in error.message


READERS: dict[str, tuple[Reader[Any], str]] = {
    "chat": (schemas._CHAT, "messages"),
    "completions": (schemas._COMPLETION, "prompt"),
    "responses": (responses._READER, "input"),
    "embeddings": (embeddings._READER, "input"),
    "tokenize": (tokens._TOKENIZE, "messages"),
    "detokenize": (tokens._DETOKENIZE, "tokens"),
}
MANY = decode.MAX_VALUES + 1
WIDE = {
    "lists": b"[" + b",".join([b"[]"] * MANY) + b"]",
    "objects": b"[" + b",".join([b"{}"] * MANY) + b"]",
    "texts": b"[" + b",".join([b'""'] * MANY) + b"]",
    "escaped texts": b"[" + b",".join([b'"\\\\"'] * MANY) + b"]",
    "lists of numbers": b"[" + b",".join([b"[0]"] * MANY) + b"]",
    "keys": b"[{" + b",".join([b'"%x":0' % number for number in range(MANY)]) + b"}]",
    "deep lists": b"[" + b",".join([b"[" * 64 + b"]" * 64] * (MANY // 64)) + b"]",
    "parts": b'[{"role":"user","content":[' + b",".join([b'{"type":"text"}'] * (MANY // 3)) + b"]}]",
}


@pytest.mark.parametrize("kind", WIDE)
@pytest.mark.parametrize("surface", READERS)
def test_nothing_is_made_of_too_many_values(surface: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body of millions of entries is refused by the name of its field, before one of them is an object of Python."""
    reader, field = READERS[surface]

    def decoded(_body: object) -> None:
        raise AssertionError("its entries were made")

    monkeypatch.setattr(reader, "_decode", decoded)
    for body in (
        b'{"model":"m","%s":%s}' % (field.encode(), WIDE[kind]),
        b'{"%s":%s,"model":"m"}' % (field.encode(), WIDE[kind]),
    ):
        with pytest.raises(BadRequest) as caught:
            reader.read(body)
        assert caught.value.param == field
        assert str(decode.MAX_VALUES) in caught.value.message


def test_field_that_comes_twice_costs_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two large fields with one name the first, which doesn't count, is not made either."""
    sizes = []
    make = msgspec.json.Decoder(ChatRequest).decode

    def decoded(body: bytes) -> ChatRequest:
        sizes.append(len(body))
        return make(body)

    monkeypatch.setattr(schemas._CHAT, "_decode", decoded)
    assert schemas._CHAT.read(b'{"messages":' + WIDE["lists"] + b"," + chat()[1:]) == parse_chat(chat())
    assert max(sizes) < 2 * len(chat())


@pytest.mark.parametrize("text", ["[{", 'a "quoted" {word} ', "\\", '\\"', "\\\\[\\"], ids=repr)
def test_what_is_written_in_a_text_does_not_count(text: str) -> None:
    """Code, JSON and quotes in one long text are one value, so that a text may be as long as a body."""
    long = text * (2 * MANY // len(text))
    body = json.dumps({"model": "m", "prompt": long}).encode()
    assert parse_completion(body).prompt == long
    assert num_values(json.dumps([long, {"a": [long]}]).encode(), most=10) == 6


def test_values_are_counted_up_to_the_number_of_interest() -> None:
    """Texts, lists and objects count, keys too, numbers and words do not."""
    value = b'{"a": [1, true, "x"], "b": {"c": null}}'
    assert num_values(value, most=100) == 7
    assert num_values(value, most=1) > 1
