"""Outputs that follow grammars, over the wire: a worker with its real core and its real judge."""

import json
import re

import jsonschema
import pytest

from engine.protocol import pb
from tests.engine.front.client import Client, GenerateStream, channel
from tests.engine.front.conftest import Run
from tests.engine.front.process import WorkerProcess

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "kind": {"enum": ["minnow", "whale", "東京"]}},
    "required": ["name", "kind"],
    "additionalProperties": False,
}
JSON = pb.Grammar(kind=pb.Grammar.KIND_JSON_SCHEMA, text=json.dumps(SCHEMA))
REGEX = pb.Grammar(kind=pb.Grammar.KIND_REGEX, text=r"\d{4}-\d{2}")
PROMPT = [5, 6, 7]


async def submit(stream: GenerateStream, grammar: pb.Grammar, **fields: object) -> int:
    """Submit a request with a grammar, sampled at temperature 1."""
    sampling = {"temperature": 1.0, "max_tokens": 200, "grammar": grammar, **fields.pop("sampling", {})}  # type: ignore[dict-item]
    return await stream.submit(PROMPT, sampling=sampling, **fields)  # type: ignore[arg-type]


def test_each_kind_of_grammar(engine: WorkerProcess, run: Run) -> None:
    """Many at once, with texts that are what the grammar says; the stream has no part of the end."""

    async def story() -> None:
        async with channel(engine.address) as client:
            await client.use_policy()
            stream = client.generate()
            lark = pb.Grammar(kind=pb.Grammar.KIND_LARK, text='start: "yes" | "no" | "perhaps"')
            numbers = [(await submit(stream, grammar), grammar) for grammar in (JSON, REGEX, lark) for _ in range(8)]
            for number, grammar in numbers:
                end = await stream.end(number)
                assert end.finished.reason == pb.FINISH_REASON_STOP, end
                text = stream.text(number)
                if grammar is JSON:
                    jsonschema.validate(json.loads(text), SCHEMA)
                elif grammar is REGEX:
                    assert re.fullmatch(r"[0-9]{4}-[0-9]{2}", text)
                else:
                    assert text in ("yes", "no", "perhaps")

    run(story())


def test_several_outputs(engine: WorkerProcess, run: Run) -> None:
    """Each of `n`, and the best of more, follows the grammar."""

    async def story() -> None:
        async with channel(engine.address) as client:
            await client.use_policy()
            stream = client.generate()
            several = await submit(stream, REGEX, n=3)
            best = await submit(stream, REGEX, n=1, best_of=4)
            await stream.end(several)
            await stream.end(best)
            for index in range(3):
                _, text, reasons = stream.of_output(several, index)
                assert re.fullmatch(r"[0-9]{4}-[0-9]{2}", text)
                assert reasons == [pb.FINISH_REASON_STOP]
            assert re.fullmatch(r"[0-9]{4}-[0-9]{2}", stream.text(best))

    run(story())


def test_stop_string_inside_a_grammar(engine: WorkerProcess, run: Run) -> None:
    """It ends the output as ever, and is no part of it."""

    async def story() -> None:
        async with channel(engine.address) as client:
            await client.use_policy()
            stream = client.generate()
            number = await submit(stream, REGEX, stop=["-"])
            assert (await stream.end(number)).finished.reason == pb.FINISH_REASON_STOP
            assert re.fullmatch(r"[0-9]{4}", stream.text(number))

    run(story())


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        (pb.Grammar(kind=pb.Grammar.KIND_JSON_SCHEMA, text='{"type": "objekt"}'), "objekt"),
        (pb.Grammar(kind=pb.Grammar.KIND_JSON_SCHEMA, text='{"type": "array", "uniqueItems": true}'), "uniqueItems"),
        (pb.Grammar(kind=pb.Grammar.KIND_JSON_SCHEMA, text='{"$ref": "http://127.0.0.1:9/schema"}'), "127.0.0.1"),
        (pb.Grammar(kind=pb.Grammar.KIND_REGEX, text=r"(?=a)b"), "look"),
        (pb.Grammar(kind=pb.Grammar.KIND_REGEX, text="["), "regex"),
        (pb.Grammar(kind=pb.Grammar.KIND_LARK, text="start: start"), "grammar"),
        (pb.Grammar(kind=pb.Grammar.KIND_LARK, text='{"grammars": []}'), "Lark"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_grammar(engine: WorkerProcess, run: Run, grammar: pb.Grammar, reason: str) -> None:
    """It is refused with what is wrong with it, under the field's name."""

    async def story() -> None:
        async with channel(engine.address) as client:
            await client.use_policy()
            stream = client.generate()
            number = await submit(stream, grammar)
            refused = (await stream.end(number)).refused
            assert (refused.code, refused.field) == (pb.REFUSAL_CODE_INVALID, "grammar")
            assert reason in refused.message

    run(story())


async def numbers_of(client: Client, count: int) -> list[str]:
    """Return the texts of so many outputs of one grammar, sent at once."""
    stream = client.generate()
    numbers = [await submit(stream, JSON, sampling={"seed": seed}) for seed in range(count)]
    for number in numbers:
        await stream.end(number)
    return [stream.text(number) for number in numbers]


def test_seed_decides(engine: WorkerProcess, run: Run) -> None:
    """The same seed writes the same document, in company or not."""

    async def story() -> None:
        async with channel(engine.address) as client:
            await client.use_policy()
            first = await numbers_of(client, 10)
            assert await numbers_of(client, 3) == first[:3]
            assert len(set(first)) > 5

    run(story())
