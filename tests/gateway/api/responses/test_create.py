"""Creating responses through real processes, with OpenAI's SDK and by hand."""

import json
import uuid
from typing import Any

import httpx
import msgspec
import openai
import psycopg
import pytest
from openai import OpenAI
from openai.types.responses import ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from gateway.api.responses import answers
from tests.gateway.wire.stack import Stack, TenantInTest, wait_for

ASK: dict[str, Any] = {"model": "tiny", "input": "Where is the harbour?", "max_output_tokens": 8, "temperature": 0}
LOGPROBS = "message.output_text.logprobs"

_EVENTS = TypeAdapter[Any](ResponseStreamEvent)


def create(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    """Create a response by hand."""
    answer = client.post("/v1/responses", json=ASK | fields)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def refused(client: httpx.Client, status: int, **fields: Any) -> dict[str, Any]:
    """Return the error of a response that is not created."""
    answer = client.post("/v1/responses", json=ASK | fields)
    assert answer.status_code == status, answer.text
    return dict(answer.json()["error"])


def events(client: httpx.Client, **fields: Any) -> list[dict[str, Any]]:
    """Return the events of a streamed response, each of which names itself."""
    with client.stream("POST", "/v1/responses", json=ASK | {"stream": True} | fields) as answer:
        text = "".join(answer.iter_text())
    assert answer.status_code == 200, text
    found = []
    for frame in text.removesuffix("\n\n").split("\n\n"):
        name, data = frame.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def without(response: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return a response without some of its fields."""
    return {name: value for name, value in response.items() if name not in names}


def test_a_text_gives_a_response(sdk: OpenAI) -> None:
    """With a text, its tokens, and what held for it."""
    response = sdk.responses.create(**ASK)
    assert (response.status, response.model, response.error) == ("incomplete", "tiny", None)
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.output_text
    assert response.usage is not None
    assert response.usage.output_tokens == 8
    assert response.usage.total_tokens == response.usage.input_tokens + 8
    assert (response.temperature, response.top_p, response.service_tier) == (0, 1, "default")


def test_a_stream_tells_the_same(client: httpx.Client) -> None:
    """Its events are the SDK's, numbered from 0; its deltas join to the text that the whole response has."""
    told = events(client)
    for event in told:
        _EVENTS.validate_python(event)
    assert [event["sequence_number"] for event in told] == list(range(len(told)))
    assert (told[0]["type"], told[-1]["type"]) == ("response.created", "response.incomplete")
    text = "".join(event["delta"] for event in told if event["type"] == "response.output_text.delta")
    whole = create(client)
    assert text == whole["output"][0]["content"][0]["text"]
    own = ("id", "created_at", "output", "usage")
    assert without(told[-1]["response"], *own) == without(whole, *own)


def test_the_sdk_streams(sdk: OpenAI) -> None:
    """Its own reading of the stream comes to the final response."""
    body = {"stop": ["e", "t", "a", "o"], "max_output_tokens": 2000}
    with sdk.responses.stream(model="tiny", input="Where is the harbour?", extra_body=body) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        assert stream.get_final_response().output_text == text


def test_items_are_a_conversation(client: httpx.Client) -> None:
    """The same tokens go in as a chat of the same messages has; instructions are the system's."""
    messages = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi"},
        {"role": "user", "content": "Where is the harbour?"},
    ]
    items = [
        {"role": "user", "content": "Hello"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hi", "annotations": []}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Where is the harbour?"}]},
    ]
    made = create(client, instructions="Be brief.", input=items)
    chat = client.post(
        "/v1/chat/completions",
        json={
            "model": "tiny",
            "messages": [{"role": "system", "content": "Be brief."}, *messages],
            "max_tokens": 8,
            "temperature": 0,
        },
    ).json()
    assert made["usage"]["input_tokens"] == chat["usage"]["prompt_tokens"]
    assert made["output"][0]["content"][0]["text"] == chat["choices"][0]["message"]["content"]
    assert made["instructions"] == "Be brief."


def test_a_response_goes_on_from_the_previous_one(sdk: OpenAI) -> None:
    """As if everything had been sent again; instructions are not carried over."""
    first = sdk.responses.create(**ASK, instructions="Be brief.")
    second = sdk.responses.create(**ASK | {"input": "And when?"}, previous_response_id=first.id)
    again: Any = [
        {"role": "user", "content": ASK["input"]},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "And when?"},
    ]
    whole = sdk.responses.create(**ASK | {"input": again})
    assert second.output_text == whole.output_text
    assert second.usage is not None
    assert whole.usage is not None
    assert second.usage.input_tokens == whole.usage.input_tokens
    assert (second.previous_response_id, second.instructions) == (first.id, None)


def test_output_items_go_in_again(sdk: OpenAI) -> None:
    """What the SDK gives back as it got it, and what is referred to by its id, mean the same."""
    first = sdk.responses.create(**ASK)
    question = {"role": "user", "content": "And when?"}
    asked = {"role": "user", "content": ASK["input"]}
    sent: Any = [asked, *(item.to_dict() for item in first.output), question]
    referred: Any = [asked, {"type": "item_reference", "id": first.output[0].id}, question]
    one = sdk.responses.create(**ASK | {"input": sent})
    other = sdk.responses.create(**ASK | {"input": referred})
    assert one.output_text == other.output_text
    assert one.usage is not None
    assert other.usage is not None
    assert one.usage.input_tokens == other.usage.input_tokens


def test_what_is_not_there_cannot_be_gone_on_from(stack: Stack, tenant: TenantInTest, client: httpx.Client) -> None:
    """Neither another tenant's response nor another project's, an unknown one, one that was not stored, nor an item."""
    with stack.http(stack.tenant().key()) as stranger:
        theirs = create(stranger)
    not_stored = create(client, store=False)
    for missing in (theirs["id"], not_stored["id"], "resp_" + "0" * 32, "resp_\0", "x"):
        error = refused(client, 400, previous_response_id=missing)
        assert (error["code"], error["param"]) == ("previous_response_not_found", "previous_response_id")
    for item in (theirs["output"][0]["id"], "msg_1"):
        assert refused(client, 400, input=[{"type": "item_reference", "id": item}])["param"] == "input[0].id"


def test_calls_and_their_outputs_belong_together(client: httpx.Client) -> None:
    """An output without its call is refused, and a call without its output, before a template sees them."""
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": "7"}
    user = {"role": "user", "content": "x"}
    for wrong, param in (
        ([user, output], "input[1].call_id"),
        ([user, call, output, output], "input[3].call_id"),
        ([user, call], "input"),
        ([user, call, user, output], "input"),
    ):
        assert refused(client, 400, input=wrong)["param"] == param
    assert create(client, input=[user, call, output])["usage"]["input_tokens"] > 0


def test_log_probabilities_are_told(client: httpx.Client) -> None:
    """In the deltas and in the part, each with the likeliest tokens; the stream's are those of the whole."""
    whole = create(client, include=[LOGPROBS], top_logprobs=2)
    [part] = whole["output"][0]["content"]
    assert len(part["logprobs"]) == 8
    assert all(len(score["top_logprobs"]) == 2 and score["bytes"] is not None for score in part["logprobs"])
    assert part["logprobs"][0]["top_logprobs"][0]["token"] == part["logprobs"][0]["token"]
    told = events(client, include=[LOGPROBS], top_logprobs=2)
    scores = [score for event in told if event["type"] == "response.output_text.delta" for score in event["logprobs"]]
    assert [score["token"] for score in scores] == [score["token"] for score in part["logprobs"]]
    assert create(client)["output"][0]["content"][0]["logprobs"] == []


def test_a_schema_is_kept_to(client: httpx.Client, sdk: OpenAI) -> None:
    """By a model that knows nothing of it; the SDK makes an object of the text."""

    class Place(BaseModel):
        open: bool

    parsed = sdk.responses.parse(model="tiny", input="Where?", text_format=Place, max_output_tokens=200).output_parsed
    assert isinstance(parsed, Place)
    error = refused(
        client, 400, text={"format": {"type": "json_schema", "name": "n", "schema": {"type": "no such type"}}}
    )
    assert error["param"] == "text.format"


def test_truncation_drops_what_is_oldest(stack: Stack) -> None:
    """Where not all fits; without it that is an error which says so."""
    tenant = stack.tenant(max_context=512, max_output=64)
    many = [{"role": "user", "content": f"{number} " * 60} for number in range(8)]
    with stack.http(tenant.key()) as client:
        error = refused(client, 400, input=many)
        assert error["code"] == "context_length_exceeded"
        cut = create(client, input=many, truncation="auto", instructions="Be brief.")
        assert cut["usage"]["input_tokens"] <= 512 - 8
        kept = client.get(f"/v1/responses/{cut['id']}/input_items", params={"order": "asc"}).json()["data"]
        assert 0 < len(kept) < len(many)
        assert [item["content"][0]["text"] for item in kept] == [one["content"] for one in many[-len(kept) :]]
        alone = refused(client, 400, input="x " * 2000, truncation="auto")
        assert (alone["code"], alone["param"]) == ("context_length_exceeded", "input")


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"model": "gone"}, 404, "model_not_found"),
        ({"max_output_tokens": 1 << 20}, 400, "context_length_exceeded"),
        ({"input": "x" * (2 << 20)}, 400, "context_length_exceeded"),
        ({"model": "plain"}, 400, "no_chat_template"),
        ({"service_tier": "priority"}, 400, None),
    ],
    ids=["no model", "too much output", "too much input", "no chat form", "not their class"],
)
@pytest.mark.parametrize("how", [{}, {"stream": True}, {"background": True}], ids=["whole", "streamed", "background"])
def test_a_refusal_is_a_status(
    client: httpx.Client, fields: dict[str, Any], status: int, code: str | None, how: dict[str, Any]
) -> None:
    """However the response was to be told; and its field is named as this surface names it."""
    error = refused(client, status, **fields, **how)
    assert error["code"] == code
    assert error["param"] in ("model", "input", "max_output_tokens", "service_tier")


def test_a_large_response_is_not_stored(client: httpx.Client) -> None:
    """The error names what makes it so; where nothing is kept it is served."""
    unused = [{"type": "function", "name": f"f{number:02}", "description": "d" * 16_300} for number in range(32)]
    large = {"user": "u" * ((1 << 19) - 2), "tools": unused, "tool_choice": "none"}  # each as long as a field may be
    error = refused(client, 400, **large)
    assert (error["code"], error["param"]) == ("response_too_large", "tools")
    assert create(client, **large, store=False)["store"] is False


def test_it_counts_as_a_request_of_the_tenant(tenant: TenantInTest, client: httpx.Client) -> None:
    """Metered by the worker like any other."""
    usage = create(client)["usage"]
    [record] = wait_for(tenant.usage, what="the usage record")
    assert (record["prompt_tokens"], record["completion_tokens"]) == (usage["input_tokens"], usage["output_tokens"])


def test_rates_are_the_tenants(stack: Stack) -> None:
    """A limit that is used up is a 429 with its headers, and every answer says what is left."""
    tenant = stack.tenant(rpm=2)
    with stack.http(tenant.key()) as client:
        answers = [client.post("/v1/responses", json=ASK | {"stream": number == 1}) for number in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert all("x-ratelimit-remaining-requests" in answer.headers for answer in answers)


def test_without_a_key_there_is_nothing(stack: Stack) -> None:
    """On every path."""
    with stack.http() as client:
        for method, path in (
            ("POST", "/v1/responses"),
            ("POST", "/v1/responses/input_tokens"),
            ("GET", "/v1/responses/resp_1"),
            ("DELETE", "/v1/responses/resp_1"),
            ("POST", "/v1/responses/resp_1/cancel"),
            ("GET", "/v1/responses/resp_1/input_items"),
        ):
            assert client.request(method, path).status_code == 401


def test_tokens_are_counted_without_generating(sdk: OpenAI, tenant: TenantInTest) -> None:
    """As many as the response then has; nothing is stored or metered for it."""
    counted = sdk.responses.input_tokens.count(model="tiny", input=ASK["input"], instructions="Be brief.")
    usage = sdk.responses.create(**ASK, instructions="Be brief.").usage
    assert usage is not None
    assert counted.input_tokens == usage.input_tokens
    wait_for(tenant.usage, what="the usage record")
    assert len(tenant.usage()) == 1


def test_a_client_that_leaves_ends_its_response(client: httpx.Client, tenant: TenantInTest) -> None:
    """The worker stops, and nothing of it is stored."""
    forever = ASK | {"stream": True, "max_output_tokens": 30_000, "ignore_eos": True}
    with client.stream("POST", "/v1/responses", json=forever) as answer:
        lines = (line for line in answer.iter_lines() if line.startswith("data: "))
        response_id = json.loads(next(lines).removeprefix("data: "))["response"]["id"]
        next(line for line in lines if "output_text.delta" in line)
    [record] = wait_for(tenant.usage, what="the usage record")
    assert record["finish_reason"] == "cancelled"
    assert client.get(f"/v1/responses/{response_id}").status_code == 404


def test_a_message_is_an_error_of_the_sdk(sdk: OpenAI) -> None:
    """It raises what it raises for OpenAI's."""
    with pytest.raises(openai.BadRequestError, match="reasoning"):
        sdk.responses.create(**ASK, reasoning={"effort": "high"})


def test_a_call_is_made_and_answered(client: httpx.Client, sdk: OpenAI) -> None:
    """The model is kept to one call with arguments that fit; its output goes on from there."""
    tools: Any = [
        {
            "type": "function",
            "name": "opening_hours",
            "parameters": {
                "type": "object",
                "properties": {"of": {"enum": ["harbour", "market"]}},
                "required": ["of"],
                "additionalProperties": False,
            },
        }
    ]
    asked: Any = {
        "model": "tiny",
        "input": "When?",
        "tools": tools,
        "tool_choice": "required",
        "max_output_tokens": 200,
    }
    first = sdk.responses.create(**asked, parallel_tool_calls=False)
    [call] = first.output
    assert call.type == "function_call"
    assert (first.status, call.name, json.loads(call.arguments)["of"] in ("harbour", "market")) == (
        "completed",
        "opening_hours",
        True,
    )
    told = events(client, **asked, parallel_tool_calls=False)
    joined = "".join(event["delta"] for event in told if event["type"] == "response.function_call_arguments.delta")
    assert json.loads(joined).keys() == {"of"}
    for event in told:
        _EVENTS.validate_python(event)
    output: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "from nine to five"}]
    second = sdk.responses.create(
        model="tiny", input=output, previous_response_id=first.id, tools=tools, tool_choice="none", max_output_tokens=8
    )
    assert second.output[0].type == "message"
    assert refused(client, 400, previous_response_id=first.id)["param"] == "input"


def test_answers_are_what_the_document_says(client: httpx.Client) -> None:
    """The OpenAPI document is made of these types."""
    made = create(client, include=[LOGPROBS], top_logprobs=1)
    msgspec.convert(made, answers.Response, strict=True)
    msgspec.convert(client.get(f"/v1/responses/{made['id']}/input_items").json(), answers.ItemList, strict=True)
    for event in events(client, include=[LOGPROBS], top_logprobs=1):
        msgspec.convert(event, answers.Event, strict=True)
    msgspec.convert(client.delete(f"/v1/responses/{made['id']}").json(), answers.Deleted, strict=True)
    counted = client.post("/v1/responses/input_tokens", json=ASK).json()
    msgspec.convert(counted, answers.InputTokens, strict=True)


@pytest.mark.parametrize("how", [{}, {"stream": True}, {"background": True}], ids=["whole", "streamed", "background"])
def test_a_request_that_is_sent_again_is_answered_once(client: httpx.Client, how: dict[str, Any]) -> None:
    """Under one Idempotency-Key there is one response."""
    key = {"Idempotency-Key": uuid.uuid4().hex}
    first, second = (client.post("/v1/responses", json=ASK | how, headers=key) for _ in range(2))
    assert (first.status_code, first.text) == (200, second.text)
    assert second.headers["idempotent-replayed"] == "true"


def test_deltas_hide_their_length_where_that_is_asked_for(client: httpx.Client) -> None:
    """Delta and padding together have one of few lengths; nothing is padded unasked."""
    told = events(client, stream_options={"include_obfuscation": True})
    deltas = [event for event in told if event["type"] == "response.output_text.delta"]
    assert {len(msgspec.json.encode(event["delta"])) + len(event["obfuscation"]) for event in deltas} <= {64, 128}
    assert all("obfuscation" not in event for event in told if "delta" not in event)
    assert all("obfuscation" not in event for event in events(client))


def test_no_text_is_logged(stack: Stack, client: httpx.Client) -> None:
    """Whatever becomes of it: neither what went in, nor what came out."""
    word = f"secret{uuid.uuid4().hex}"
    made = create(client, input=word, instructions=word, metadata={"k": word}, user=word)
    refused(client, 400, input=[{"role": "user", "content": word}, {"type": "item_reference", "id": word}])
    refused(client, 400, input=word, previous_response_id=word)
    for path in ("", "/input_items"):
        client.get(f"/v1/responses/{made['id']}{path}").raise_for_status()
    with stack.http(stack.tenant(max_context=64, max_output=64).key()) as small:
        failed = create(small, input=word * 3, background=True)
        wait_for(lambda: small.get(f"/v1/responses/{failed['id']}").json()["status"] == "failed", what="its end")
    assert made["id"] in stack.web.log()
    assert word not in stack.web.log()
    with psycopg.connect(stack.env["DATABASE_URL"]) as database:
        rows = database.execute("SELECT r::text, encode(sealed, 'escape') FROM tenants_storedresponse AS r")
        assert word not in str(rows.fetchall())


@pytest.mark.parametrize("depth", [100, 500, 900, 5000, 200_000])
@pytest.mark.parametrize(
    "body",
    [
        '{{"model": "tiny", "input": "x", "text": {{"format": {{"type": "json_schema", "name": "n", '
        '"schema": {0}}}}}}}',
        '{{"model": "tiny", "input": "x", "tools": [{{"type": "function", "name": "f", "parameters": {0}}}]}}',
        '{{"model": "tiny", "input": [{{"role": "user", "content": "x", "more": {0}}}]}}',
        '{{"model": "tiny", "input": [{{"role": "assistant", "content": [{{"type": "output_text", "text": "x", '
        '"logprobs": [{0}]}}]}}, {{"role": "user", "content": "x"}}], "max_output_tokens": 1}}',
        '{{"model": "tiny", "input": [{{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{{}}", '
        '"parsed_arguments": {0}}}, {{"type": "function_call_output", "call_id": "c", "output": "x"}}], '
        '"max_output_tokens": 1}}',
    ],
    ids=["schema", "parameters", "unknown", "logprobs", "parsed"],
)
def test_depth_is_no_defect(client: httpx.Client, body: str, depth: int) -> None:
    """JSON that is nested as deep as one likes is served or refused."""
    nested = '{"a":' * depth + "{}" + "}" * depth
    answer = client.post("/v1/responses", content=body.format(nested), headers={"content-type": "application/json"})
    assert answer.status_code in (200, 400), answer.text[:500]


@pytest.mark.parametrize(
    "item",
    [
        {"role": "user", "content": "\0"},
        {"role": "user", "content": "", "id": "\0"},
        {"role": "user", "content": "🦜" * 10, "id": "é" * 128},
        {"role": "user", "content": []},
        {"type": "function_call", "call_id": "\0", "name": "f", "arguments": "not JSON"},
    ],
    ids=["nul", "an id of nul", "other planes", "no parts", "an argument"],
)
def test_odd_items_are_kept_as_they_are(client: httpx.Client, item: dict[str, Any]) -> None:
    """They come back, and can be gone on from."""
    items = [item]
    if item.get("type") == "function_call":
        items.append({"type": "function_call_output", "call_id": item["call_id"], "output": ""})
    made = create(client, input=items)
    listed = client.get(f"/v1/responses/{made['id']}/input_items", params={"order": "asc"}).json()["data"]
    for name in ("id", "call_id", "arguments"):
        assert listed[0].get(name) == item.get(name, listed[0].get(name))
    create(client, input="And then?", previous_response_id=made["id"])
