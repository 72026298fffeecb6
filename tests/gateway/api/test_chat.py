"""Chat completions through real processes with the real OpenAI SDK."""

import json

import openai
import pytest

from tests.gateway.wire.stack import Stack, TenantInTest, wait_for

HELLO = [{"role": "user", "content": "hello world"}]
LONG = {"ignore_eos": True}


def test_whole_answer(stack: Stack, tenant: TenantInTest) -> None:
    """An answer that isn't streamed has a text, a reason and usage that adds up."""
    answer = stack.openai(tenant.key()).chat.completions.create(
        model="tiny", messages=HELLO, max_tokens=8, temperature=0, extra_body=LONG
    )
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 8
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 8
    assert answer.id.startswith("chatcmpl-")


def test_stream_equals_whole(stack: Stack, tenant: TenantInTest) -> None:
    """A stream's deltas join to the text of the whole answer; id and created are the same in each chunk."""
    client = stack.openai(tenant.key())
    common = {"model": "tiny", "messages": HELLO, "max_completion_tokens": 24, "temperature": 0, "extra_body": LONG}
    whole = client.chat.completions.create(**common)
    chunks = list(client.chat.completions.create(**common, stream=True))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "length"
    assert all(chunk.choices[0].finish_reason is None for chunk in chunks[:-1])


def test_include_usage(stack: Stack, tenant: TenantInTest) -> None:
    """With include_usage every chunk says `usage: null`, and a last one without choices has it."""
    chunks = list(
        stack.openai(tenant.key()).chat.completions.create(
            model="tiny",
            messages=HELLO,
            max_tokens=5,
            stream=True,
            stream_options={"include_usage": True},
            extra_body=LONG,
        )
    )
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert all("usage" in chunk.model_fields_set for chunk in chunks)
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 5


def test_framing(stack: Stack, tenant: TenantInTest) -> None:
    """The wire is `data: {json}` and blank lines, ends with [DONE], has no `id:` and no usage unless asked."""
    body = {"model": "tiny", "messages": HELLO, "max_tokens": 4, "stream": True}
    with stack.http(tenant.key()) as client:
        response = client.post("/v1/chat/completions", json=body)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["x-request-id"].startswith("req_")
    frames = response.text.split("\n\n")
    assert frames[-2:] == ["data: [DONE]", ""]
    assert all(frame.startswith("data: ") and "\n" not in frame for frame in frames[:-1])
    assert all("usage" not in json.loads(frame[6:]) for frame in frames[:-2])


def test_seed_repeats(stack: Stack, tenant: TenantInTest) -> None:
    """The same seed gives the same text, another one doesn't."""
    client = stack.openai(tenant.key())

    def text(seed: int) -> str | None:
        answer = client.chat.completions.create(
            model="tiny", messages=HELLO, max_tokens=24, temperature=1.5, seed=seed, extra_body=LONG
        )
        return answer.choices[0].message.content

    assert text(7) == text(7)
    assert len({text(7), text(8), text(-9)}) == 3


def test_stop_string_is_not_told(stack: Stack, tenant: TenantInTest) -> None:
    """A stop string ends the output and is no part of it."""
    client = stack.openai(tenant.key())
    common = {"model": "tiny", "messages": HELLO, "max_tokens": 40, "temperature": 0, "extra_body": LONG}
    text = client.chat.completions.create(**common).choices[0].message.content
    stop = text[10:13]
    answer = client.chat.completions.create(**common, stop=[stop])
    assert answer.choices[0].message.content == text[: text.index(stop)]
    assert answer.choices[0].finish_reason == "stop"


def test_parts_and_roles(stack: Stack, tenant: TenantInTest) -> None:
    """Text parts, developer messages, and an earlier answer as the SDK gives it back, are taken."""
    client = stack.openai(tenant.key())
    first = client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=4)
    messages = [
        {"role": "developer", "content": "be short"},
        {"role": "user", "content": [{"type": "text", "text": "hello"}, {"type": "text", "text": "world"}]},
        first.choices[0].message.model_dump(),
        {"role": "user", "content": "again"},
    ]
    answer = client.chat.completions.create(
        model="tiny",
        messages=messages,
        max_tokens=4,
        n=1,
        logprobs=False,
        presence_penalty=0,
        frequency_penalty=0.0,
        user="somebody",
        metadata={"a": "b"},
        store=False,
        response_format={"type": "text"},
    )
    assert answer.usage.prompt_tokens > 20


def test_models(stack: Stack, tenant: TenantInTest) -> None:
    """Both workers' models are listed and served side by side, each by its own name."""
    client = stack.openai(tenant.key())
    assert {"tiny", "plain"} <= {model.id for model in client.models.list()}
    assert client.models.retrieve("tiny").id == "tiny"
    texts = {
        model: client.completions.create(model=model, prompt="hello", max_tokens=12, temperature=0).choices[0].text
        for model in ("tiny", "plain")
    }
    assert texts["tiny"] != texts["plain"]


def test_model_that_is_not_there(stack: Stack, tenant: TenantInTest) -> None:
    """An unknown model and one hidden from the key give the same 404."""
    with pytest.raises(openai.NotFoundError) as unknown:
        stack.openai(tenant.key()).chat.completions.create(model="nothing", messages=HELLO)
    client = stack.openai(tenant.key(models=["plain"]))
    with pytest.raises(openai.NotFoundError) as hidden:
        client.chat.completions.create(model="tiny", messages=HELLO)
    assert unknown.value.code == hidden.value.code == "model_not_found"
    assert unknown.value.message.replace("nothing", "tiny") == hidden.value.message
    assert [model.id for model in client.models.list()] == ["plain"]
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("tiny")


def test_no_chat_template(stack: Stack, tenant: TenantInTest) -> None:
    """A model without a chat form refuses chat and says where to go."""
    with pytest.raises(openai.BadRequestError, match="/v1/completions"):
        stack.openai(tenant.key()).chat.completions.create(model="plain", messages=HELLO)


def test_context_length(stack: Stack, tenant: TenantInTest) -> None:
    """A prompt, or a prompt with its output, that exceeds the context is a 400 with the SDK's code."""
    client = stack.openai(tenant.key())
    for content, most in (("hello " * 40_000, 1), ("x" * 3_000_000, 1), ("hello", 40_000)):
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": content}], max_tokens=most
            )
        assert caught.value.code == "context_length_exceeded"


def test_usage_reaches_the_ledger(stack: Stack, tenant: TenantInTest) -> None:
    """The ledger has one record under the request's id, with the counts that the client was told."""
    with stack.http(tenant.key()) as client:
        response = client.post("/v1/chat/completions", json={"model": "tiny", "messages": HELLO, "max_tokens": 6})
    usage = response.json()["usage"]
    records = wait_for(tenant.usage)
    assert [record["request_id"] for record in records] == [response.headers["x-request-id"]]
    assert records[0]["completion_tokens"] == usage["completion_tokens"]
    assert records[0]["prompt_tokens"] == usage["prompt_tokens"]
