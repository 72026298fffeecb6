"""What an output must be, with the OpenAI Python SDK: JSON, schemas, and the extensions beyond them."""

import json
import re
from typing import Any, Literal

import jsonschema
import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel

from tests.engine.tiny_model import make_tokenizer
from tests.sdk.conftest import Dial
from tests.sdk.faulty import Faulty
from tests.sdk.place import Place, SdkTenant

ASK: list[Any] = [{"role": "user", "content": "Tell me of a harbour, as JSON."}]
SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["river", "sea"]}, "depth": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["kind", "depth"],
    "additionalProperties": False,
}


class Harbour(BaseModel):
    """What the parsing helper is asked for."""

    kind: Literal["river", "sea"]
    open: bool


@pytest.fixture
def ask(client: OpenAI, place: Place) -> Any:
    """Return a function that asks, and returns the text of the answer."""

    def text(**options: Any) -> str:
        defaults: dict[str, Any] = {"model": place.model, "messages": ASK, "max_tokens": 400}
        answer = client.chat.completions.create(**(defaults | options))
        assert answer.choices[0].finish_reason == "stop"
        return answer.choices[0].message.content or ""

    return text


@pytest.mark.parametrize("seed", range(3))
def test_json_schema(ask: Any, seed: int) -> None:
    """Whatever is sampled is JSON that fits the schema."""
    wanted = {"type": "json_schema", "json_schema": {"name": "harbour", "schema": SCHEMA, "strict": True}}
    jsonschema.validate(json.loads(ask(response_format=wanted, temperature=1, seed=seed)), SCHEMA)


def test_json_schema_in_a_stream(client: OpenAI, place: Place) -> None:
    """A stream of it joins to JSON that fits."""
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "harbour", "schema": SCHEMA}}
    stream = client.chat.completions.create(
        model=place.model, messages=ASK, max_tokens=400, response_format=wanted, stream=True
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    jsonschema.validate(json.loads(text), SCHEMA)


def test_json_object(ask: Any) -> None:
    """JSON mode gives an object, of whatever the model likes: here one that wants to close soon."""
    close = make_tokenizer().token_to_id("}")
    text = ask(response_format={"type": "json_object"}, logit_bias={str(close): 100})
    assert isinstance(json.loads(text), dict)


def test_parse(client: OpenAI, place: Place) -> None:
    """`chat.completions.parse` takes a Pydantic model and gives an instance of it."""
    answer = client.chat.completions.parse(
        model=place.model, messages=ASK, max_tokens=200, response_format=Harbour, temperature=1
    )
    parsed = answer.choices[0].message.parsed
    assert isinstance(parsed, Harbour)


def test_parse_a_stream(client: OpenAI, place: Place) -> None:
    """The streaming helper parses it at the end."""
    with client.chat.completions.stream(
        model=place.model, messages=ASK, max_tokens=200, response_format=Harbour
    ) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    assert isinstance(final.choices[0].message.parsed, Harbour)


def test_parse_tells_of_a_cut(client: OpenAI, place: Place) -> None:
    """JSON that is cut by the limit of tokens is the SDK's LengthFinishReasonError."""
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(model=place.model, messages=ASK, max_tokens=2, response_format=Harbour)


def test_regex(ask: Any) -> None:
    """An extension: the whole output matches an expression."""
    assert re.fullmatch(r"[0-9]{3}-[a-f]{2}", ask(extra_body={"regex": "[0-9]{3}-[a-f]{2}"}))


def test_grammar(ask: Any) -> None:
    """An extension: the output is of a grammar."""
    grammar = 'start: "north" | "south" digits\ndigits: /[0-9]{2}/'
    assert re.fullmatch(r"north|south[0-9]{2}", ask(extra_body={"grammar": grammar}))


def test_choice(ask: Any) -> None:
    """Names of vLLM's are understood: one of some texts."""
    assert ask(extra_body={"structured_outputs": {"choice": ["ebb", "flood"]}}) in ("ebb", "flood")


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "wrong"}}}},
            "response_format",
        ),
        ({"response_format": {"type": "yaml"}}, "response_format"),
        ({"extra_body": {"regex": "("}}, "regex"),
        ({"extra_body": {"grammar": "start: nothing"}}, "grammar"),
        ({"extra_body": {"regex": "a", "grammar": 'start: "a"'}}, "grammar"),
    ],
    ids=["no schema", "bad schema", "unknown format", "bad regex", "bad grammar", "two at once"],
)
def test_what_cannot_be_kept_to_is_refused(ask: Any, options: dict[str, Any], param: str) -> None:
    """A schema, an expression or a grammar that is wrong is a 400 that names the field."""
    with pytest.raises(openai.BadRequestError) as caught:
        ask(**options)
    assert (caught.value.param or "").startswith(param)


COSTLY = "x{100}((a{1,50}){1,50}){20,50}z"  # no output gets beyond its twentieth a


def test_an_expression_that_turns_out_too_costly(
    dial: Dial, place: Place, home: SdkTenant, proxy: Faulty, name: str
) -> None:
    """It is a 400 that names the field, which no SDK sends again; what was generated is in the usage."""
    client = dial(base_url=proxy.base_url("cut", 0, name), max_retries=2)
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(
            model=place.model, messages=ASK, max_tokens=400, extra_body={"regex": COSTLY}, temperature=0
        )
    assert caught.value.param == "regex"
    assert "simpler" in caught.value.message
    assert len(proxy.seen[name].requests) == 1
    record = home.record(caught.value.response.headers["x-request-id"])
    assert record["completion_tokens"] > 10
    assert record["finish_reason"] == "error"


def test_a_costly_expression_in_a_stream(client: OpenAI, place: Place) -> None:
    """What has been sent stays sent, and the stream ends with an error of the same kind."""
    own = {"regex": COSTLY.replace("x", "y")}
    stream = client.chat.completions.create(
        model=place.model, messages=ASK, max_tokens=400, extra_body=own, stream=True
    )
    texts = (chunk.choices[0].delta.content or "" for chunk in stream)
    sent: list[str] = []
    with pytest.raises(openai.APIError) as caught:
        sent.extend(texts)
    assert "".join(sent).startswith("y" * 50)
    assert (caught.value.type, caught.value.param) == ("invalid_request_error", "regex")
