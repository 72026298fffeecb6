"""The frames of several choices, and their common end: the handlers over plain ASGI, a scripted engine behind."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from engine.protocol import pb
from gateway.api.completions import completions
from gateway.web import Web
from gateway.workers.errors import Stopping
from tests.gateway.api.test_waiting import BODY, Client, run
from tests.gateway.wire.scripted import ScriptedEngine, admitted, delta, finished, output_finished, refused, until

BEAMS = {"use_beam_search": True}
PROMPTS = {"model": "scripted", "prompt": ["one", "two"], "n": 2}
USAGE = {"stream_options": {"include_usage": True}}


def frames(client: Client) -> list[Any]:
    """Return the decoded events of a stream that has ended with [DONE]."""
    events = client.body.split(b"\n\n")
    assert events[-2:] == [b"data: [DONE]", b""]
    return [json.loads(event.removeprefix(b"data: ")) for event in events[:-2]]


def told(events: list[Any]) -> list[tuple[int, Any, str | None]]:
    """Return index, content and reason of each choice, in the order of the wire."""
    choices = [choice for event in events for choice in event["choices"]]
    return [(choice["index"], choice["delta"].get("content"), choice["finish_reason"]) for choice in choices]


def test_interleaved_chunks() -> None:
    """Each choice is opened, told as it comes and closed under its index; usage comes once, after all of them."""

    async def story(web: Web, engine: ScriptedEngine) -> None:
        client = Client(web, BODY | USAGE | {"n": 2})
        sent = (await until(lambda: engine.submits))[0]
        assert (sent.n, sent.best_of, sent.HasField("beam_search")) == (2, 0, False)
        stream = sent.stream
        for event, seen in (
            (admitted(stream), b'"index":1,"delta":{"role":"assistant"'),
            (delta(stream, "b", index=1), b'"b"'),
            (delta(stream, "a"), b'"a"'),
            (output_finished(stream, 1, "c", pb.FINISH_REASON_LENGTH), b'"length"'),
            (delta(stream, "d"), b'"d"'),
        ):
            await engine.say(event)
            await until(lambda seen=seen: seen in client.body)  # type: ignore[misc]
        await engine.say(output_finished(stream, 0), finished(stream))
        await client.task
        *chunks, last = frames(client)
        assert told(chunks) == [
            (0, "", None),
            (1, "", None),
            (1, "b", None),
            (0, "a", None),
            (1, "c", None),
            (1, None, "length"),
            (0, "d", None),
            (0, None, "stop"),
        ]
        assert all(chunk["usage"] is None for chunk in chunks)
        assert (last["choices"], last["usage"]["prompt_tokens"], last["usage"]["completion_tokens"]) == ([], 3, 2)

    run(story)


def test_whole_answer_is_ordered_by_prompt_then_output() -> None:
    """Whatever order the outputs of several prompts end in, their choices stand in the order of OpenAI."""

    async def story(web: Web, engine: ScriptedEngine) -> None:
        client = Client(web, PROMPTS, completions)
        await until(lambda: len(engine.submits) == 2)
        first, second = (sent.stream for sent in engine.submits)
        await engine.say(admitted(second), delta(second, "d", index=1), delta(second, "c"), admitted(first))
        await engine.say(output_finished(second, 1), output_finished(second, 0, reason=pb.FINISH_REASON_LENGTH))
        await engine.say(finished(second), delta(first, "b", index=1), output_finished(first, 1))
        await engine.say(output_finished(first, 0, "a"), finished(first))
        await client.task
        answer = json.loads(client.body)
        choices = [(one["index"], one["text"], one["finish_reason"]) for one in answer["choices"]]
        assert choices == [(0, "a", "stop"), (1, "b", "stop"), (2, "c", "length"), (3, "d", "stop")]
        assert answer["usage"]["prompt_tokens"] == 6
        assert answer["usage"]["completion_tokens"] == 4

    run(story)


@pytest.mark.parametrize(
    ("fields", "asked"),
    [
        ({}, {"n": 1}),
        ({"n": 2, "best_of": 5}, {"n": 2, "best_of": 5}),
        ({"n": 3, "best_of": 3}, {"n": 3}),
        (BEAMS, {"n": 1, "beam_search": pb.BeamSearch(width=2, length_penalty=1)}),
        (BEAMS | {"n": 3}, {"n": 3, "beam_search": pb.BeamSearch(width=3, length_penalty=1)}),
        (
            BEAMS | {"n": 2, "beam_width": 5, "length_penalty": -0.5, "early_stopping": True},
            {"n": 2, "beam_search": pb.BeamSearch(width=5, length_penalty=-0.5, early_stopping=True)},
        ),
    ],
)
def test_what_the_worker_is_asked_for(fields: dict[str, Any], asked: dict[str, Any]) -> None:
    """The worker is asked for what the client wrote, with the defaults that the documents name."""

    async def story(web: Web, engine: ScriptedEngine) -> None:
        client = Client(web, {"model": "scripted", "prompt": "one"} | fields, completions)
        sent = (await until(lambda: engine.submits))[0]
        several = pb.Submit(n=sent.n, best_of=sent.best_of)
        if sent.HasField("beam_search"):
            several.beam_search.CopyFrom(sent.beam_search)
        assert several == pb.Submit(**asked)
        await engine.say(refused(sent.stream, pb.REFUSAL_CODE_INVALID))
        await client.task

    run(story)


def test_streamed_beams_come_whole_at_the_end() -> None:
    """A search may be streamed: its outputs come at the end, one after the other, each with its text whole."""

    async def story(web: Web, engine: ScriptedEngine) -> None:
        client = Client(web, BODY | {"n": 2, "use_beam_search": True, "beam_width": 4})
        stream = (await until(lambda: engine.submits))[0].stream
        await engine.say(admitted(stream))
        await until(lambda: client.status == 200)
        texts = [(delta(stream, text, 3, index), output_finished(stream, index)) for index, text in enumerate("xy")]
        await engine.say(*texts[0], *texts[1], finished(stream))
        await client.task
        assert told(frames(client))[2:] == [(0, "x", None), (0, None, "stop"), (1, "y", None), (1, None, "stop")]

    run(story)


@pytest.mark.parametrize(
    "end",
    [
        lambda stream: [finished(stream, pb.FINISH_REASON_ERROR)],
        lambda stream: [
            output_finished(stream, 1, reason=pb.FINISH_REASON_CANCELLED),
            finished(stream, pb.FINISH_REASON_CANCELLED),
        ],
        lambda stream: [finished(stream)],
    ],
)
def test_failure_in_mid_stream_is_one_error(end: Callable[[int], list[pb.Event]]) -> None:
    """However a worker fails some of the outputs, the client gets one error event and [DONE]."""

    async def story(web: Web, engine: ScriptedEngine) -> None:
        client = Client(web, BODY | {"n": 2})
        stream = (await until(lambda: engine.submits))[0].stream
        await engine.say(admitted(stream), delta(stream, "a"), output_finished(stream, 0), *end(stream))
        await client.task
        *chunks, last = frames(client)
        assert last["error"]["code"] == "worker_failed"
        assert [event for event in chunks if "error" in event] == []

    run(story)


def test_failure_of_one_prompt_ends_the_others() -> None:
    """When one prompt fails, its error ends the stream and the outputs of the other prompt are cancelled."""

    async def story(web: Web, engine: ScriptedEngine) -> None:
        client = Client(web, PROMPTS | {"stream": True}, completions)
        await until(lambda: len(engine.submits) == 2)
        first, second = (sent.stream for sent in engine.submits)
        await engine.say(admitted(first), admitted(second), delta(first, "a", index=1))
        await until(lambda: b'"a"' in client.body)
        await engine.say(finished(second, pb.FINISH_REASON_ERROR))
        await client.task
        assert frames(client)[-1]["error"]["code"] == "worker_failed"
        await until(lambda: engine.cancels == [first])

    run(story)


def test_client_that_leaves_cancels_once() -> None:
    """A client that goes cancels its request, all outputs of it, with one command."""

    async def story(web: Web, engine: ScriptedEngine) -> None:
        client = Client(web, BODY | {"n": 8})
        stream = (await until(lambda: engine.submits))[0].stream
        await engine.say(admitted(stream), output_finished(stream, 3, "x"))
        await until(lambda: b'"x"' in client.body)
        client.leave()
        await client.task
        await until(lambda: engine.cancels == [stream])

    run(story)


def test_stopping_process_ends_all_outputs_with_one_error() -> None:
    """A process that must end gives the stream one error event and [DONE]."""

    async def story(web: Web, engine: ScriptedEngine) -> None:
        client = Client(web, BODY | {"n": 3})
        stream = (await until(lambda: engine.submits))[0].stream
        await engine.say(admitted(stream), delta(stream, "x", index=2))
        await until(lambda: b'"x"' in client.body)
        for live in list(web.drain._live):
            live.fail(Stopping("The server is restarting and ended this response"))
        await client.task
        assert [event for event in frames(client) if "error" in event] == frames(client)[-1:]

    run(story)


def test_tokens_that_nobody_told_are_charged_as_reserved() -> None:
    """A client that leaves a search before its end pays what was reserved: the worker says at the end what it used."""

    async def story(web: Web, engine: ScriptedEngine) -> None:
        client = Client(web, BODY | {"use_beam_search": True, "beam_width": 4})
        stream = (await until(lambda: engine.submits))[0].stream
        (run,) = web.drain._live
        assert not run.uncounted  # type: ignore[attr-defined]
        await engine.say(admitted(stream))
        await until(lambda: client.status == 200)
        assert run.uncounted  # type: ignore[attr-defined]
        client.leave()
        await client.task

    run(story)
