"""Log-probabilities and echo as a client gets them: the handlers over plain ASGI, a scripted engine behind."""

import json
import threading
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from engine.protocol import pb
from gateway.api import completions as module
from gateway.api import respond, running
from gateway.api.chat import chat_completions
from gateway.api.completions import completions
from gateway.api.exchange import Handler
from gateway.api.responses.endpoints import create_response
from gateway.api.responses.request import LOGPROBS
from gateway.api.shapes import ChatShape, Output
from gateway.web import Web
from gateway.workers.generation import Finished
from tests.engine.tiny_model import make_tokenizer
from tests.gateway.api import test_waiting
from tests.gateway.api.test_auth import GRANT
from tests.gateway.api.test_choices import frames
from tests.gateway.api.test_waiting import BODY, Client, run
from tests.gateway.wire.scripted import ScriptedEngine, admitted, delta, finished, output_finished, until

TOKENIZER = make_tokenizer()
PROMPT = {"model": "scripted", "prompt": "the tenant"}
RESPONSE = {"model": "scripted", "input": "hello", "store": False}


def ids(text: str) -> list[int]:
    """Return a text's tokens."""
    return list(TOKENIZER.encode(text).ids)


def score(logprob: float, *top: str) -> pb.TokenScore:
    """Return a score with the texts of the likeliest tokens, each likelier than the next by 1."""
    ranked = [ids(text)[0] for text in top]
    return pb.TokenScore(logprob=logprob, top_ids=ranked, top_logprobs=[-0.5 - number for number in range(len(top))])


def scored(stream: int, text: str, tokens: Sequence[int], *, index: int = 0, top: Sequence[str] = ()) -> pb.Event:
    """Return a `delta` with scores: -1, -2, ..."""
    scores = [score(-float(number), *top) for number, _ in enumerate(tokens, start=1)]
    return pb.Event(stream=stream, index=index, delta=pb.Delta(token_ids=tokens, text=text, scores=scores))


def prompt_scored(stream: int, tokens: Sequence[int]) -> pb.Event:
    """Return the scores of a prompt, 0.5 less at each token."""
    scores = [score(-0.5 * number) for number, _ in enumerate(tokens[1:], start=1)]
    return pb.Event(stream=stream, prompt_scores=pb.PromptScores(scores=scores))


@pytest.mark.parametrize("streamed", [True, False])
def test_chat(streamed: bool) -> None:
    """Each token of the content has its log-probability, its bytes and as many others as were asked for."""
    tokens = [*ids("the"), *ids("🙂")]

    async def story(web: Web, engine: ScriptedEngine) -> None:
        client = Client(web, BODY | {"stream": streamed, "logprobs": True, "top_logprobs": 2})
        sent = (await until(lambda: engine.submits))[0]
        assert (sent.sampling.logprobs, sent.sampling.HasField("prompt_logprobs")) == (2, False)
        stream = sent.stream
        await engine.say(admitted(stream), scored(stream, "the", tokens[:-2], top=["a", "b"]))
        await engine.say(scored(stream, "", tokens[-2:-1], top=["a", "b"]))
        await engine.say(scored(stream, "🙂", tokens[-1:], top=["a", "b"]), finished(stream))
        await client.task
        if streamed:
            choices = [choice for event in frames(client) for choice in event["choices"]]
            told = [choice["logprobs"] for choice in choices if choice["logprobs"] is not None]
            content = [entry for part in told for entry in part["content"]]
            for choice in choices:
                text, part = choice["delta"].get("content", ""), choice["logprobs"] or {"content": []}
                assert b"".join(bytes(entry["bytes"]) for entry in part["content"]) == text.encode()
        else:
            (choice,) = json.loads(client.body)["choices"]
            content = choice["logprobs"]["content"]
            assert choice["logprobs"]["refusal"] is None
        assert b"".join(bytes(entry["bytes"]) for entry in content) == "the🙂".encode()
        assert [entry["logprob"] for entry in content[:1]] == [-1.0]
        assert all([one["token"] for one in entry["top_logprobs"]] == ["a", "b"] for entry in content)

    run(story)


def test_chat_without_top() -> None:
    """`logprobs` alone has the tokens' own."""

    async def story(web: Web, engine: ScriptedEngine) -> None:
        client = Client(web, BODY | {"stream": False, "logprobs": True})
        sent = (await until(lambda: engine.submits))[0]
        assert sent.sampling.HasField("logprobs")
        await engine.say(admitted(sent.stream), scored(sent.stream, "a", ids("a")), finished(sent.stream))
        await client.task
        (choice,) = json.loads(client.body)["choices"]
        assert choice["logprobs"]["content"] == [{"token": "a", "logprob": -1.0, "bytes": [97], "top_logprobs": []}]

    run(story)


@pytest.mark.parametrize("streamed", [True, False])
def test_scores_of_several_outputs(streamed: bool) -> None:
    """Each choice has the scores of its own tokens."""

    async def story(web: Web, engine: ScriptedEngine) -> None:
        client = Client(web, BODY | {"stream": streamed, "logprobs": True, "n": 2})
        stream = (await until(lambda: engine.submits))[0].stream
        await engine.say(admitted(stream), scored(stream, "b", ids("b"), index=1), scored(stream, "a", ids("a")))
        await engine.say(output_finished(stream, 0), output_finished(stream, 1), finished(stream))
        await client.task
        answers = frames(client) if streamed else [json.loads(client.body)]
        told: dict[int, list[str]] = {0: [], 1: []}
        for choice in [choice for answer in answers for choice in answer["choices"]]:
            told[choice["index"]] += [entry["token"] for entry in (choice["logprobs"] or {"content": []})["content"]]
        assert told == {0: ["a"], 1: ["b"]}

    run(story)


def whole(client: Client, *, streamed: bool) -> dict[str, Any]:
    """Return the one choice of an answer, put together from its chunks where it is streamed."""
    if not streamed:
        (choice,) = json.loads(client.body)["choices"]
        return dict(choice)
    choices = [choice for event in frames(client) for choice in event["choices"]]
    parts = [choice["logprobs"] for choice in choices if choice["logprobs"] is not None]
    lists = {name: [value for part in parts for value in part[name]] for name in parts[0]} if parts else None
    text = "".join(choice["text"] for choice in choices)
    return {"index": 0, "text": text, "logprobs": lists, "finish_reason": choices[-1]["finish_reason"]}


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("prompt", ["the tenant", ids("the tenant")], ids=["text", "ids"])
def test_completion(streamed: bool, prompt: object) -> None:
    """Four lists; the chosen token is among the likeliest, whether it was or not; offsets begin behind the prompt."""

    async def story(web: Web, engine: ScriptedEngine) -> None:
        client = Client(web, PROMPT | {"prompt": prompt, "stream": streamed, "logprobs": 1}, completions)
        stream = (await until(lambda: engine.submits))[0].stream
        await engine.say(admitted(stream), scored(stream, "ab", [*ids("a"), *ids("b")], top=["a"]), finished(stream))
        await client.task
        assert whole(client, streamed=streamed) == {
            "index": 0,
            "text": "ab",
            "logprobs": {
                "tokens": ["a", "b"],
                "token_logprobs": [-1.0, -2.0],
                "top_logprobs": [{"a": -0.5}, {"a": -0.5, "b": -2.0}],
                "text_offset": [10, 11],
            },
            "finish_reason": "stop",
        }

    run(story)


@pytest.mark.parametrize("streamed", [True, False])
def test_echo(streamed: bool) -> None:
    """The prompt comes before the output, as the client wrote it; nothing is scored where nothing is asked for."""

    async def story(web: Web, engine: ScriptedEngine) -> None:
        client = Client(web, PROMPT | {"stream": streamed, "echo": True}, completions)
        sent = (await until(lambda: engine.submits))[0]
        assert not sent.sampling.HasField("prompt_logprobs")
        await engine.say(admitted(sent.stream), delta(sent.stream, " holds"), finished(sent.stream))
        await client.task
        choice = whole(client, streamed=streamed)
        assert (choice["text"], choice["logprobs"]) == ("the tenant holds", None)

    run(story)


@pytest.mark.parametrize("streamed", [True, False])
def test_echo_with_scores(streamed: bool) -> None:
    """The prompt's tokens are scored too, all but the first; offsets begin with the prompt."""
    tokens = ids("the tenant")

    async def story(web: Web, engine: ScriptedEngine) -> None:
        client = Client(web, PROMPT | {"stream": streamed, "echo": True, "logprobs": 0}, completions)
        sent = (await until(lambda: engine.submits))[0]
        assert (sent.sampling.logprobs, sent.sampling.prompt_logprobs) == (0, 0)
        assert sent.sampling.HasField("prompt_logprobs")
        stream = sent.stream
        await engine.say(admitted(stream), prompt_scored(stream, tokens), scored(stream, "!", ids("!")))
        await engine.say(finished(stream))
        await client.task
        choice = whole(client, streamed=streamed)
        logprobs = choice["logprobs"]
        assert choice["text"] == "the tenant!"
        assert "".join(logprobs["tokens"]) == "the tenant!"
        assert logprobs["token_logprobs"] == [None, *(-0.5 * number for number in range(1, len(tokens))), -1.0]
        assert logprobs["top_logprobs"][0] is None
        assert logprobs["text_offset"][0] == 0
        assert logprobs["text_offset"][-1] == 10

    run(story)


@pytest.mark.parametrize("streamed", [True, False])
def test_echo_of_a_single_token(streamed: bool) -> None:
    """A prompt of one token has no score at all, and none is waited for."""

    async def story(web: Web, engine: ScriptedEngine) -> None:
        client = Client(web, PROMPT | {"prompt": "a", "stream": streamed, "echo": True, "logprobs": 1}, completions)
        stream = (await until(lambda: engine.submits))[0].stream
        await engine.say(admitted(stream), scored(stream, "b", ids("b"), top=["b"]), finished(stream))
        await client.task
        choice = whole(client, streamed=streamed)
        assert choice["logprobs"]["tokens"] == ["a", "b"]
        assert choice["logprobs"]["token_logprobs"] == [None, -1.0]

    run(story)


@pytest.mark.parametrize("streamed", [True, False])
def test_prompts_are_echoed_each_with_its_outputs(streamed: bool) -> None:
    """With several prompts and outputs each choice begins with its own prompt."""

    async def story(web: Web, engine: ScriptedEngine) -> None:
        body = PROMPT | {"prompt": ["one", "two"], "n": 2, "echo": True, "stream": streamed}
        client = Client(web, body, completions)
        await until(lambda: len(engine.submits) == 2)
        for sent, texts in zip(list(engine.submits), ("ab", "cd"), strict=True):
            await engine.say(admitted(sent.stream))
            ends = [output_finished(sent.stream, index, text) for index, text in enumerate(texts)]
            await engine.say(*ends, finished(sent.stream))
        await client.task
        answers = frames(client) if streamed else [json.loads(client.body)]
        told = [""] * 4
        for choice in [choice for answer in answers for choice in answer["choices"]]:
            told[choice["index"]] += choice["text"]
        assert told == ["onea", "oneb", "twoc", "twod"]

    run(story)


@pytest.mark.parametrize("streamed", [True, False])
def test_an_echo_is_bounded(monkeypatch: pytest.MonkeyPatch, streamed: bool) -> None:
    """More log-probabilities of prompts than an answer holds are refused before anything runs: each choice has all."""
    tokens = ids("the tenant")
    monkeypatch.setattr(module, "MAX_SCORES", len(tokens) * 3 * (1 + 4))

    async def story(web: Web, engine: ScriptedEngine) -> None:
        body = PROMPT | {"prompt": tokens, "echo": True, "logprobs": 4, "stream": streamed}
        refused = Client(web, body | {"n": 4}, completions)
        await refused.task
        assert refused.status == 400
        assert json.loads(refused.body)["error"]["param"] == "logprobs"
        assert not engine.submits
        taken = Client(web, body | {"n": 3}, completions)
        await until(lambda: engine.submits)
        taken.leave()
        await taken.task

    run(story)


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize(
    ("handler", "fields", "count", "param"),
    [
        (chat_completions, {"logprobs": True, "top_logprobs": 4, "n": 3, "max_tokens": 10}, 150, "top_logprobs"),
        (chat_completions, {"logprobs": True, "n": 3}, 300, "logprobs"),
        (completions, {"logprobs": 0, "prompt": [[5], [6]], "n": 3, "max_tokens": 10}, 60, "logprobs"),
        (completions, {"logprobs": 1, "prompt": [[5] * 2000], "max_tokens": 48}, 96, "logprobs"),
        (create_response, {"include": [LOGPROBS], "top_logprobs": 4, "max_output_tokens": 9}, 45, "top_logprobs"),
        (create_response, {"include": [LOGPROBS], "max_output_tokens": 9}, 9, "include"),
    ],
    ids=["top", "tokens", "prompts", "context", "response", "response_tokens"],
)
def test_scores_of_the_output_are_bounded(
    monkeypatch: pytest.MonkeyPatch, handler: Handler, fields: dict[str, Any], count: int, param: str, streamed: bool
) -> None:
    """More log-probabilities than an answer holds, were its outputs as long as they may be, are refused by the name
    that the client gave them, before anything runs; as many as it holds are not.
    """
    policy = msgspec.structs.replace(GRANT.policy, max_output=100)
    monkeypatch.setattr(test_waiting, "GRANT", msgspec.structs.replace(GRANT, policy=policy))
    starts = {chat_completions: BODY, completions: PROMPT, create_response: RESPONSE}
    body = starts[handler] | fields | {"stream": streamed}

    async def story(web: Web, engine: ScriptedEngine) -> None:
        monkeypatch.setattr(running, "MAX_SCORES", count - 1)
        refused = Client(web, body, handler)
        await refused.task
        error = json.loads(refused.body)["error"]
        assert (refused.status, error["param"]) == (400, param)
        assert f"{count} log-probabilities" in error["message"]
        assert f"`{param}`" in error["message"]
        assert not engine.submits
        monkeypatch.setattr(running, "MAX_SCORES", count)
        taken = Client(web, body, handler)
        await until(lambda: engine.submits)
        taken.leave()
        await taken.task

    run(story)


def test_many_scores_hold_up_no_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer with very many log-probabilities is written beside the event loop."""
    threads: list[str] = []
    write = ChatShape.whole

    def noted(shape: ChatShape, outputs: Sequence[Output], ends: Sequence[Finished]) -> dict[str, Any]:
        threads.append(threading.current_thread().name)
        return write(shape, outputs, ends)

    monkeypatch.setattr(ChatShape, "whole", noted)
    monkeypatch.setattr(respond, "INLINE_SCORES", 3)

    async def story(web: Web, engine: ScriptedEngine) -> None:
        for number, text in enumerate(("a", "the tenant"), start=1):
            client = Client(web, BODY | {"stream": False, "logprobs": True, "top_logprobs": 1})
            stream = (await until(lambda number=number: engine.submits[number - 1 : number]))[0].stream
            await engine.say(admitted(stream), scored(stream, text, ids(text), top=["b"]), finished(stream))
            await client.task
            assert json.loads(client.body)["choices"][0]["message"]["content"] == text

    run(story)
    short, long = threads
    assert short == threading.main_thread().name
    assert long != short
