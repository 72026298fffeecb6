"""Streams with the OpenAI Python SDK: chunks, helpers, both clients, and streams that their reader closes."""

import asyncio
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from openai import AsyncStream, OpenAI

from tests.sdk.conftest import dialled
from tests.sdk.place import ENDLESS, Place, SdkTenant

HELLO: list[Any] = [{"role": "user", "content": "hello world"}]
WHOLE = {"ignore_eos": True}


@pytest.fixture
def common(place: Place) -> dict[str, Any]:
    """What all requests here share."""
    return {
        "model": place.model,
        "messages": HELLO,
        "max_completion_tokens": 24,
        "temperature": 0,
        "extra_body": WHOLE,
    }


def joined(chunks: list[Any], index: int = 0) -> str:
    """Return the text of one choice of a stream."""
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices if choice.index == index)


def test_a_stream_says_what_the_whole_answer_says(client: OpenAI, common: dict[str, Any]) -> None:
    """Deltas join to the text; id, time and model are the same in each chunk."""
    whole = client.chat.completions.create(**common)
    chunks = list(client.chat.completions.create(**common, stream=True))
    assert joined(chunks) == whole.choices[0].message.content
    assert len({(chunk.id, chunk.created, chunk.model, chunk.system_fingerprint) for chunk in chunks}) == 1
    assert all(chunk.object == "chat.completion.chunk" for chunk in chunks)


def test_role_comes_first_and_the_reason_last(client: OpenAI, common: dict[str, Any]) -> None:
    """The first delta has the role; only the last chunk has a finish reason."""
    chunks = list(client.chat.completions.create(**common, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "length"
    assert all(chunk.choices[0].finish_reason is None for chunk in chunks[:-1])


def test_usage_of_a_stream(client: OpenAI, common: dict[str, Any]) -> None:
    """`include_usage`: null in each chunk, then one without choices that has it."""
    chunks = list(client.chat.completions.create(**common, stream=True, stream_options={"include_usage": True}))
    assert all("usage" in chunk.model_fields_set and chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 24


def test_no_usage_unless_asked(client: OpenAI, common: dict[str, Any]) -> None:
    """Without the option no chunk has the field."""
    chunks = list(client.chat.completions.create(**common, stream=True))
    assert all("usage" not in chunk.model_fields_set for chunk in chunks)


def test_several_choices_in_one_stream(client: OpenAI, common: dict[str, Any]) -> None:
    """Each choice opens and ends once, and says what it says in the whole answer."""
    options = common | {"n": 3, "temperature": 1, "seed": 11}
    whole = client.chat.completions.create(**options)
    chunks = list(client.chat.completions.create(**options, stream=True))
    assert [joined(chunks, index) for index in range(3)] == [one.message.content for one in whole.choices]
    ends = [one.index for chunk in chunks for one in chunk.choices if one.finish_reason]
    assert sorted(ends) == [0, 1, 2]


def test_logprobs_in_a_stream(client: OpenAI, common: dict[str, Any]) -> None:
    """The tokens of all chunks are those of the whole answer, with the same log-probabilities."""
    options = common | {"logprobs": True, "top_logprobs": 2}
    whole = client.chat.completions.create(**options).choices[0].logprobs.content
    chunks = list(client.chat.completions.create(**options, stream=True))
    parts = [chunk.choices[0].logprobs for chunk in chunks]
    told = [token for part in parts if part is not None for token in part.content or []]
    assert [token.token for token in told] == [token.token for token in whole]
    assert [token.logprob for token in told] == pytest.approx([token.logprob for token in whole], abs=1e-3)


def test_stop_string_in_a_stream(client: OpenAI, common: dict[str, Any]) -> None:
    """No part of a stop string is told, also where it comes in several tokens."""
    whole = client.chat.completions.create(**common).choices[0].message.content or ""
    stop = whole[8:12]
    chunks = list(client.chat.completions.create(**common, stop=stop, stream=True))
    assert joined(chunks) == whole[: whole.index(stop)]
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_the_helper_accumulates(client: OpenAI, common: dict[str, Any]) -> None:
    """`chat.completions.stream` tells deltas and at the end the whole completion."""
    whole = client.chat.completions.create(**common).choices[0].message.content or ""
    stop = whole[12:15]  # the helper raises where the limit of tokens ends an output
    with client.chat.completions.stream(**common, stop=stop, stream_options={"include_usage": True}) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert {"content.delta", "content.done"} <= set(kinds)
    assert final.choices[0].message.content == whole[: whole.index(stop)]
    assert final.usage is not None and final.usage.completion_tokens > 0


def test_a_stream_as_a_context(client: OpenAI, common: dict[str, Any]) -> None:
    """`with` closes it; the headers are there before the first chunk."""
    with client.chat.completions.create(**common, stream=True) as stream:
        assert stream.response.headers["content-type"].startswith("text/event-stream")
        assert stream.response.headers["x-request-id"].startswith("req_")
        assert next(iter(stream)).choices[0].delta.role == "assistant"


def test_streamed_bytes(client: OpenAI, common: dict[str, Any]) -> None:
    """With the SDK's streaming response the lines are as they come over the wire."""
    with client.chat.completions.with_streaming_response.create(**common, stream=True) as response:
        lines = [line for line in response.iter_lines() if line]
    assert all(line.startswith(("data: ", ": ")) for line in lines)
    assert lines[-1] == "data: [DONE]"


def test_closing_a_stream_cancels_it(client: OpenAI, place: Place, home: SdkTenant) -> None:
    """What was generated until then is metered, and the request ends as cancelled."""
    stream = client.chat.completions.create(
        model=place.model, messages=HELLO, max_tokens=ENDLESS, stream=True, extra_body=WHOLE
    )
    chunks = iter(stream)
    for _ in range(3):
        next(chunks)
    stream.close()
    record = home.record(stream.response.headers["x-request-id"])
    assert record["finish_reason"] == "cancelled"
    assert 0 < record["completion_tokens"] < ENDLESS


def test_async_stream(place: Place, home_key: str, common: dict[str, Any], client: OpenAI) -> None:
    """The asynchronous client reads the same."""

    async def read() -> str:
        async with dialled(place, home_key) as made:
            stream: AsyncStream[Any] = await made.chat.completions.create(**common, stream=True)
            return joined([chunk async for chunk in stream])

    assert async_to_sync(read)() == client.chat.completions.create(**common).choices[0].message.content


def test_many_streams_at_once(place: Place, home_key: str, common: dict[str, Any]) -> None:
    """Streams of one client run side by side, and none gets another's text."""

    async def read() -> list[str]:
        async with dialled(place, home_key) as made:

            async def one(seed: int) -> str:
                options = common | {"temperature": 1, "seed": seed}
                return joined([chunk async for chunk in await made.chat.completions.create(**options, stream=True)])

            return await asyncio.gather(*(one(seed % 4) for seed in range(12)))

    texts = async_to_sync(read)()
    assert texts[:4] == texts[4:8] == texts[8:]
    assert len(set(texts)) > 1


def test_a_cancelled_task_cancels_its_request(place: Place, home: SdkTenant, home_key: str) -> None:
    """Cancelling the task that reads a stream is a client's leave."""

    async def leave() -> str:
        async with dialled(place, home_key) as made:
            stream: AsyncStream[Any] = await made.chat.completions.create(
                model=place.model, messages=HELLO, max_tokens=ENDLESS, stream=True, extra_body=WHOLE
            )
            begun = asyncio.Event()

            async def read() -> None:
                async for _ in stream:
                    begun.set()

            task = asyncio.create_task(read())
            await begun.wait()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await stream.close()
            return str(stream.response.headers["x-request-id"])

    assert home.record(async_to_sync(leave)())["finish_reason"] == "cancelled"
