"""What a worker is asked for, field by field, and what is said where it can't be: a scripted engine behind."""

import json
from typing import Any

import msgspec
import pytest

from engine.protocol import pb
from gateway.api.completions import completions
from gateway.api.exchange import Handler
from gateway.web import Web
from tests.gateway.api import test_waiting
from tests.gateway.api.test_auth import GRANT
from tests.gateway.api.test_choices import frames
from tests.gateway.api.test_waiting import Client, run
from tests.gateway.wire.scripted import ScriptedEngine, admitted, delta, finished, refused, until

CHAT = {"model": "scripted", "messages": [{"role": "user", "content": "hello"}]}
TEXT = {"model": "scripted", "prompt": "hello"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
PLAIN = pb.Sampling(temperature=1, top_p=1, max_tokens=16)


def asked(sent: pb.Submit) -> pb.Sampling:
    """Return what was asked for beside the defaults of a completion."""
    different = pb.Sampling()
    different.CopyFrom(sent.sampling)
    for field, value in PLAIN.ListFields():
        if getattr(different, field.name) == value:
            different.ClearField(field.name)
    return different


@pytest.mark.parametrize(
    ("fields", "sampling"),
    [
        ({}, {}),
        ({"temperature": 0.5, "top_p": 0.25, "top_k": 7}, {"temperature": 0.5, "top_p": 0.25, "top_k": 7}),
        ({"top_k": -1, "min_p": 0, "repetition_penalty": None}, {}),
        ({"min_p": 0.25, "min_tokens": 3}, {"min_p": 0.25, "min_tokens": 3}),
        (
            {"frequency_penalty": -2, "presence_penalty": 1.5, "repetition_penalty": 1.25},
            {"frequency_penalty": -2, "presence_penalty": 1.5, "repetition_penalty": 1.25},
        ),
        ({"logit_bias": {"5": -100, "6": 0.5}}, {"logit_bias": {5: -100, 6: 0.5}}),
        ({"logit_bias": {}}, {}),
        ({"seed": -1}, {"seed": 2**64 - 1}),
        (
            {"stop": "a", "stop_token_ids": [3], "ignore_eos": True},
            {"stop": ["a"], "stop_token_ids": [3], "ignore_eos": 1},
        ),
        ({"stop": ["a", "b"], "max_tokens": 1}, {"stop": ["a", "b"], "max_tokens": 1}),
        ({"user": "u", "safety_identifier": "s", "metadata": {"k": "v"}, "service_tier": "auto"}, {}),
        ({"logprobs": 3}, {"logprobs": 3}),
        ({"logprobs": 0, "echo": True}, {"logprobs": 0, "prompt_logprobs": 0}),
        ({"echo": True, "logprobs": 2, "max_tokens": 0}, {"prompt_logprobs": 2}),
        ({"response_format": {"type": "text"}}, {}),
        ({"skip_special_tokens": True, "include_stop_str_in_output": False, "add_special_tokens": True}, {}),
    ],
)
def test_what_the_worker_is_asked_for(fields: dict[str, Any], sampling: dict[str, Any]) -> None:
    """Each field of sampling reaches the worker as the client wrote it; a default is the worker's own."""

    async def story(web: Web, engine: ScriptedEngine) -> None:
        client = Client(web, TEXT | fields, completions)
        sent = (await until(lambda: engine.submits))[0]
        assert asked(sent) == pb.Sampling(**sampling)
        await engine.say(refused(sent.stream, pb.REFUSAL_CODE_INVALID))
        await client.task

    run(story)


SCHEMA_TEXT = msgspec.json.encode(SCHEMA).decode()
OBJECT = ("json_schema", '{"type": "object"}')


@pytest.mark.parametrize(
    ("fields", "grammar", "name"),
    [
        ({"response_format": {"type": "json_object"}}, OBJECT, "response_format"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": SCHEMA, "strict": True},
                }
            },
            ("json_schema", SCHEMA_TEXT),
            "response_format",
        ),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}}, OBJECT, "response_format"),
        ({"regex": "a+"}, ("regex", "a+"), "regex"),
        ({"grammar": 'start: "a"'}, ("lark", 'start: "a"'), "grammar"),
        ({"guided_regex": "a+"}, ("regex", "a+"), "guided_regex"),
        ({"guided_json": SCHEMA}, ("json_schema", SCHEMA_TEXT), "guided_json"),
        ({"guided_json": json.dumps(SCHEMA)}, ("json_schema", SCHEMA_TEXT), "guided_json"),
        ({"guided_grammar": 'start: "a"'}, ("lark", 'start: "a"'), "guided_grammar"),
        ({"guided_choice": ["yes", 'n"o']}, ("lark", 'start: "yes" | "n\\"o"'), "guided_choice"),
        ({"structured_outputs": {"regex": "a+"}}, ("regex", "a+"), "structured_outputs.regex"),
        ({"structured_outputs": {"json": SCHEMA}}, ("json_schema", SCHEMA_TEXT), "structured_outputs.json"),
        ({"structured_outputs": {"json_object": True}}, OBJECT, "structured_outputs.json_object"),
        ({"structured_outputs": {"choice": ["a"]}}, ("lark", 'start: "a"'), "structured_outputs.choice"),
    ],
)
@pytest.mark.parametrize("streamed", [True, False])
def test_formats(fields: dict[str, Any], grammar: tuple[str, str], name: str, streamed: bool) -> None:
    """What an output must be reaches the worker as one grammar; its refusal names the client's own field."""

    async def story(web: Web, engine: ScriptedEngine) -> None:
        client = Client(web, CHAT | fields | {"stream": streamed})
        sent = (await until(lambda: engine.submits))[0]
        kind = getattr(pb.Grammar, f"KIND_{grammar[0].upper()}")
        assert sent.sampling.grammar == pb.Grammar(kind=kind, text=grammar[1])
        await engine.say(refused(sent.stream, pb.REFUSAL_CODE_INVALID, "grammar"))
        await client.task
        assert client.status == 400
        assert json.loads(client.body)["error"]["param"] == name

    run(story)


def test_refusal_after_the_status_line_names_the_field(monkeypatch: pytest.MonkeyPatch) -> None:
    """So does one that comes when a long wait has sent the status line."""
    monkeypatch.setattr("gateway.api.respond.PING_SECONDS", 0.02)

    async def story(web: Web, engine: ScriptedEngine) -> None:
        client = Client(web, CHAT | {"regex": "a", "stream": True})
        sent = (await until(lambda: engine.submits))[0]
        await until(lambda: b": ping" in client.body)
        await engine.say(refused(sent.stream, pb.REFUSAL_CODE_INVALID, "grammar"))
        await client.task
        error = next(frame for frame in client.body.split(b"\n\n") if frame.startswith(b"data: {"))
        assert json.loads(error.removeprefix(b"data: "))["error"]["param"] == "regex"

    run(story)


@pytest.mark.parametrize(("handler", "body", "name"), [(None, CHAT, "messages"), (completions, TEXT, "prompt")])
def test_refusal_of_the_prompt_names_the_field(handler: Handler | None, body: dict[str, Any], name: str) -> None:
    """The worker's `prompt` is a chat's messages."""

    async def story(web: Web, engine: ScriptedEngine) -> None:
        client = Client(web, body, *([handler] if handler else []))
        sent = (await until(lambda: engine.submits))[0]
        await engine.say(refused(sent.stream, pb.REFUSAL_CODE_CONTEXT_TOO_LONG, "prompt"))
        await client.task
        assert json.loads(client.body)["error"]["param"] == name

    run(story)


@pytest.mark.parametrize(
    ("tier", "policy", "priority", "told"),
    [
        (None, "standard", pb.PRIORITY_STANDARD, None),
        ("auto", "standard", pb.PRIORITY_STANDARD, "default"),
        ("default", "interactive", pb.PRIORITY_INTERACTIVE, "default"),
        ("flex", "interactive", pb.PRIORITY_BATCH, "flex"),
        ("priority", "interactive", pb.PRIORITY_INTERACTIVE, "priority"),
        ("fast", "interactive", pb.PRIORITY_INTERACTIVE, "priority"),
    ],
)
@pytest.mark.parametrize("streamed", [True, False])
def test_service_tier(
    monkeypatch: pytest.MonkeyPatch, tier: str | None, policy: str, priority: int, told: str | None, streamed: bool
) -> None:
    """A tier is a class of service, and the response says which one it was, where the request names one."""
    under(monkeypatch, policy)

    async def story(web: Web, engine: ScriptedEngine) -> None:
        client = Client(web, CHAT | {"service_tier": tier, "stream": streamed})
        sent = (await until(lambda: engine.submits))[0]
        assert sent.priority == priority
        await engine.say(admitted(sent.stream), delta(sent.stream, "a"), finished(sent.stream))
        await client.task
        answers = frames(client) if streamed else [json.loads(client.body)]
        assert {answer.get("service_tier") for answer in answers} == {told}

    run(story)


@pytest.mark.parametrize("policy", ["standard", "batch"])
def test_tier_above_the_class_is_refused(monkeypatch: pytest.MonkeyPatch, policy: str) -> None:
    """A tenant whose class isn't interactive gets no priority by asking for it."""
    under(monkeypatch, policy)

    async def story(web: Web, engine: ScriptedEngine) -> None:
        client = Client(web, CHAT | {"service_tier": "priority"})
        await client.task
        assert client.status == 400
        assert json.loads(client.body)["error"]["param"] == "service_tier"
        assert not engine.submits

    run(story)


def under(monkeypatch: pytest.MonkeyPatch, priority: str) -> None:
    """Let the caller's class of service be that."""
    policy = msgspec.structs.replace(GRANT.policy, priority=priority)
    monkeypatch.setattr(test_waiting, "GRANT", msgspec.structs.replace(GRANT, policy=policy))


def test_padded_chunks() -> None:
    """With include_obfuscation each chunk is padded, so that texts of different lengths look alike."""

    async def story(web: Web, engine: ScriptedEngine) -> None:
        client = Client(web, CHAT | {"stream": True, "stream_options": {"include_obfuscation": True}})
        stream = (await until(lambda: engine.submits))[0].stream
        await engine.say(admitted(stream))
        for text in ("a", "abcdefgh"):
            await engine.say(delta(stream, text))
            await until(lambda text=text: b'"%s"' % text.encode() in client.body)  # type: ignore[misc]
        await engine.say(finished(stream))
        await client.task
        assert all("obfuscation" in frame for frame in frames(client))
        sizes = {len(frame) for frame in client.body.split(b"\n\n") if b'"content":"a' in frame}
        assert len(sizes) == 1

    run(story)
