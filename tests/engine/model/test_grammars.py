"""Real models that follow grammars, sampled at temperature 1: what ends is whole, whatever the seed."""

import json
import re
import time
from collections.abc import Callable

import jsonschema
import pytest
from tokenizers import Tokenizer

from engine.model.folder import ModelFolder, read_folder
from engine.request import FinishReason, Grammar, GrammarKind
from tests.engine.model.serving import Serving
from tests.engine.tiny_model import make_tiny_model

DEADLINE_SECONDS = 250
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "kind": {"enum": ["minnow", "whale", 'a "quoted" one', "東京", 7, None]},
        "age": {"type": "integer", "minimum": -3, "maximum": 120},
        "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-c]{1,3}$"}, "maxItems": 3},
        "score": {"type": "number", "minimum": 0, "exclusiveMaximum": 1},
        "child": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/child"}]},
    },
    "required": ["name", "kind", "age", "child"],
    "additionalProperties": False,
    "$defs": {
        "child": {
            "type": "object",
            "properties": {"id": {"type": "string", "pattern": "^[0-9a-f]{4}$"}, "alive": {"type": "boolean"}},
            "required": ["id", "alive"],
            "additionalProperties": False,
        }
    },
}
JSON = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA))
REGEX = Grammar(GrammarKind.REGEX, r"\d{4}-\d{2}-\d{2}( um \d{1,2} Uhr)?")
LARK = Grammar(
    GrammarKind.LARK,
    r"""
start: sum
sum: term (("+" | "-") term)~0..2
term: NUMBER | "(" sum ")"
NUMBER: /[0-9]{1,3}/
""",
)


def check_json(text: str) -> None:
    """Check a document against the schema."""
    jsonschema.validate(json.loads(text), SCHEMA)


def check_regex(text: str) -> None:
    """Check a text against the pattern."""
    assert re.fullmatch(REGEX.text, text), text


def check_sum(text: str) -> None:
    """Check that a text is of the Lark grammar, by what Python makes of it."""
    assert set(text) <= set("0123456789+-()"), text
    bare = re.sub(r"\d{1,3}", "1", text)
    while (shorter := re.sub(r"\(1([+-]1){0,2}\)", "1", bare)) != bare:
        bare = shorter
    assert re.fullmatch(r"1([+-]1){0,2}", bare), text


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    """A tiny checkpoint."""
    return read_folder(make_tiny_model(tmp_path_factory.mktemp("model") / "tiny", seed=4), name="tiny")


def run(serving: Serving) -> None:
    """Let all requests end; those that wait for a grammar are nothing to step, and are waited for."""
    end = time.monotonic() + DEADLINE_SECONDS
    while serving.scheduler.roster.sequences:
        assert time.monotonic() < end
        serving.step()


def texts_of(serving: Serving, tokenizer: Tokenizer) -> dict[tuple[int, int], str]:
    """Return the texts of the outputs that ended by themselves."""
    return {
        output: tokenizer.decode(serving.tokens[output][:-1], skip_special_tokens=False)
        for output, end in serving.ends.items()
        if end.finish_reason is FinishReason.STOP
    }


@pytest.mark.parametrize("num_blocks", [400, 60], ids=["roomy", "crowded"])
@pytest.mark.parametrize(("grammar", "check"), [(JSON, check_json), (REGEX, check_regex), (LARK, check_sum)])
def test_tiny_model(tiny: ModelFolder, grammar: Grammar, check: Callable[[str], None], num_blocks: int) -> None:
    """Two hundred outputs of a model that means nothing by them, preempted again and again where there is no room."""
    serving = Serving(tiny, num_blocks=num_blocks, budget=64, overcommits=num_blocks < 100)
    for seed in range(200):
        serving.submit([5 + seed % 90] * 20, temperature=1.0, seed=seed, max_tokens=200, grammar=grammar)
    run(serving)
    texts = texts_of(serving, Tokenizer.from_buffer(tiny.tokenizer_json))
    for text in texts.values():
        check(text)
    cut = [one for one in serving.ends.values() if one.finish_reason is not FinishReason.STOP]
    assert all(one.finish_reason is FinishReason.LENGTH for one in cut)
    assert len(texts) + len(cut) == 200
    assert len(texts) > 150
    assert len(set(texts.values())) > 100
    assert num_blocks > 100 or serving.num_preemptions > 0


def test_outputs_of_one_request(tiny: ModelFolder) -> None:
    """With `n` outputs each follows the grammar by itself, as it would alone."""
    serving = Serving(tiny)
    handle = serving.submit([5, 6, 7], n=6, temperature=1.0, seed=1, max_tokens=80, grammar=REGEX)
    alone = serving.submit([5, 6, 7], temperature=1.0, seed=1, max_tokens=80, grammar=REGEX)
    run(serving)
    texts = texts_of(serving, Tokenizer.from_buffer(tiny.tokenizer_json))
    for index in range(6):
        check_regex(texts[handle, index])
    assert serving.tokens[handle, 0] == serving.tokens[alone, 0]
    assert len({texts[handle, index] for index in range(6)}) > 1


def test_greedy_output_beside_one_that_is_free(tiny: ModelFolder) -> None:
    """The likeliest token that the grammar allows, whatever biases and penalties say; who has no grammar is as ever."""
    tokenizer = Tokenizer.from_buffer(tiny.tokenizer_json)
    serving, alone = Serving(tiny), Serving(tiny)
    against = tuple((token, 100.0) for token in tokenizer.encode("xyz").ids)
    shaped = {"logit_bias": against, "repetition_penalty": 1.5, "frequency_penalty": 2.0}
    guided = serving.submit([5, 6, 7], temperature=0.0, max_tokens=80, grammar=REGEX, **shaped)
    free = serving.submit([5, 6, 7], temperature=0.0, max_tokens=12, ignore_eos=True)
    same = alone.submit([5, 6, 7], temperature=0.0, max_tokens=12, ignore_eos=True)
    run(serving)
    run(alone)
    check_regex(texts_of(serving, tokenizer)[guided, 0])
    assert serving.tokens[free, 0] == alone.tokens[same, 0]


@pytest.mark.xdist_group("exact")
def test_smollm2(smollm2: ModelFolder) -> None:
    """A model of 135 million parameters writes documents of the schema, each seed another one."""
    serving = Serving(smollm2, num_blocks=512)
    tokenizer = Tokenizer.from_buffer(smollm2.tokenizer_json)
    prompt = tokenizer.encode("A fish, described as JSON:\n").ids
    for seed in range(24):
        serving.submit(prompt, temperature=1.0, seed=seed, max_tokens=160, grammar=JSON)
    run(serving)
    texts = texts_of(serving, tokenizer)
    for text in texts.values():
        check_json(text)
    assert len(texts) > 16
    assert len(set(texts.values())) > 12
