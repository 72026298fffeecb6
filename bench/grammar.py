"""What a grammar costs a decode: `python -m bench.grammar`.

    decode    1, 8 and 32 outputs of the default model at temperature 1 through scheduler and runner, each following a
              JSON schema, beside as many that are free: tokens a second
    mask      the constraint alone: microseconds for taking a token and filling the mask, over the tokens of those
              outputs, by the same schema and by a regular expression
    prepare   a schema from its text to its first mask: milliseconds
    valid     of 200 outputs at temperature 1, those that end by themselves, parse and validate

Outputs of both kinds have the same prompts, lengths and seeds, and run as long as they are measured. A grammar may cost
a tenth of the speed at most. Tokens that it leaves no choice about are sampled by nobody and count as all others.
"""

import argparse
import json
import random
import statistics
import time
from functools import partial

import numpy as np
from jsonschema import Draft202012Validator, ValidationError
from tokenizers import Tokenizer

from bench.report import Row, machine, medians, samples_of, show, take_turns, write
from engine.config import EngineConfig
from engine.constraints.compile import open_compiler
from engine.core import make_scheduler
from engine.model.folder import ModelFolder, resolve_model
from engine.model.runner import ModelRunner
from engine.policy import PolicyUpdate, TenantPolicy
from engine.request import (
    FinishReason,
    GenerationRequest,
    Grammar,
    GrammarKind,
    RequestId,
    SamplingParams,
    SequenceId,
    TenantId,
)
from engine.scheduler.outputs import RequestOutput

BATCHES = (1, 8, 32)
STEPS, PROMPT_TOKENS = 48, 64
TARGET = 0.9
SCHEMA = {
    "type": "array",
    "minItems": 100,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 3, "maxLength": 40},
            "kind": {"enum": ["minnow", "whale", "carp", "eel"]},
            "age": {"type": "integer", "minimum": 0, "maximum": 200},
            "note": {"type": "string"},
            "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 4},
        },
        "required": ["name", "kind", "age", "note"],
        "additionalProperties": False,
    },
}
NUM_VALID, VALID_TOKENS, MOST_AT_ONCE = 200, 600, 32
BOUNDED = {  # no text without an end: a weak model at temperature 1 may find none
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 30},
        "kind": {"enum": ["minnow", "whale", "carp", "eel"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 200},
        "weight": {"type": "number", "minimum": 0, "exclusiveMaximum": 1000, "multipleOf": 0.25},
        "is_tagged": {"type": "boolean"},
        "seen": {"type": ["string", "null"], "format": "date"},
        "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{1,8}$"}, "maxItems": 4},
        "parent": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/fish"}]},
    },
    "required": ["name", "kind", "age", "is_tagged", "seen", "tags"],
    "additionalProperties": False,
    "$defs": {
        "fish": {
            "type": "object",
            "properties": {"id": {"type": "integer", "minimum": 1, "maximum": 99999}},
            "required": ["id"],
            "additionalProperties": False,
        }
    },
}
GRAMMARS = {
    "JSON schema": Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA)),
    "regular expression": Grammar(GrammarKind.REGEX, r"([A-Z][a-z]+, \d{1,3} years: [^\n]{10,80}\n)+"),
}


class Decoding:
    """A core without its front."""

    def __init__(self, config: EngineConfig, folder: ModelFolder) -> None:
        self._runner = ModelRunner(config, folder)
        self._scheduler = make_scheduler(config, folder, self._runner)
        policy = TenantPolicy(
            tenant=TenantId("bench"),
            kv_hard_bytes=config.kv_bytes,
            max_running=64,
            max_queued=64,
            max_context_tokens=4096,
            max_output_tokens=4096,
        )
        self._scheduler.apply(PolicyUpdate(version=1, epoch=0, snapshot=True, tenants=(policy,)))
        self._next = 1

    def __str__(self) -> str:
        return f"tollgate ({self._runner.kernel_backend}, {self._runner.dtype})"

    def decode(self, batch: int, grammar: Grammar | None) -> float:
        """Return the tokens a second of so many outputs, once all of them have begun."""
        handles = [self._submit(number, grammar) for number in range(batch)]
        roster = self._scheduler.roster
        while len(roster.running) < batch or not all(one.generated > 1 for one in roster.running):
            self._step()
        before, began = self._scheduler.output_tokens, time.perf_counter()
        while self._scheduler.output_tokens < before + STEPS * batch:
            self._step()
        seconds = time.perf_counter() - began
        made = self._scheduler.output_tokens - before
        if len(roster.running) < batch:
            raise RuntimeError(f"of {batch} outputs {batch - len(roster.running)} have ended")
        self._scheduler.cancel(handles)
        self._step()
        return made / seconds

    def whole(self, grammar: Grammar, count: int, max_tokens: int) -> list[list[int]]:
        """Return the tokens of those outputs, of so many, that come to their own end."""
        found: dict[SequenceId, list[int]] = {}
        ended: list[list[int]] = []
        for number in range(count):
            found[self._submit(number, grammar, max_tokens)] = []
            while len(self._scheduler.roster.sequences) >= (MOST_AT_ONCE if number < count - 1 else 1):
                for news in self._step():
                    found[news.sequence] += news.token_ids
                    if news.finish_reason is FinishReason.STOP:
                        ended.append(found[news.sequence])
        return ended

    def _submit(self, number: int, grammar: Grammar | None, max_tokens: int = STEPS + 64) -> SequenceId:
        handle, self._next = SequenceId(self._next), self._next + 1
        request = GenerationRequest(
            request_id=RequestId(str(handle)),
            tenant=TenantId("bench"),
            namespace=b"",
            prompt=[(31 * place + number) % 40000 + 100 for place in range(PROMPT_TOKENS)],
            sampling=SamplingParams(
                max_tokens=max_tokens, seed=number, grammar=grammar, ignore_eos=grammar is None, temperature=1.0
            ),
        )
        self._scheduler.submit(handle, request)
        return handle

    def _step(self) -> list[RequestOutput]:
        plan = self._scheduler.plan()
        if plan is None:
            time.sleep(0.0001)  # the grammar is being prepared, or a mask made
            return self._scheduler.take_outputs()
        return self._scheduler.commit(plan, self._runner.launch(plan).wait())


def mask_rows(folder: ModelFolder) -> list[Row]:
    """Measure constraints alone, along random outputs."""
    rows = []
    compile_grammar = open_compiler(folder.tokenizer_json, folder.vocab_size, folder.eos_token_ids)
    for name, grammar in GRAMMARS.items():
        began = time.perf_counter()
        compiled = compile_grammar(grammar)
        rows.append(Row(case=f"prepare, {name}", ours=(time.perf_counter() - began) * 1e3, unit="ms"))
        taken: list[float] = []
        for seed in range(8):
            chance, constraint, tokens = random.Random(seed), compiled.constraint(frozenset(folder.eos_token_ids)), []
            for _ in range(200):
                began = time.perf_counter()
                mask = constraint.mask(tokens, 0)
                taken.append((time.perf_counter() - began) * 1e6)
                allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
                token = int(chance.choice(allowed))
                if token in folder.eos_token_ids:
                    break
                tokens.append(token)
        taken.sort()
        note = f"p99 {taken[len(taken) * 99 // 100]:.0f} µs, worst {taken[-1]:.0f} µs"
        rows.append(Row(case=f"mask, {name}", ours=statistics.mean(taken), unit="µs", note=note))
    return rows


def valid_row(decoding: Decoding, folder: ModelFolder) -> Row:
    """Count the outputs of a schema that are what it says."""
    tokenizer = Tokenizer.from_str(folder.tokenizer_json.decode())
    validator = Draft202012Validator(
        BOUNDED
    )  # a format is not asserted: the grammar knows how a date is spelt, no calendar
    found = decoding.whole(Grammar(GrammarKind.JSON_SCHEMA, json.dumps(BOUNDED)), NUM_VALID, VALID_TOKENS)
    good = 0
    for text in (tokenizer.decode(tokens, skip_special_tokens=True) for tokens in found):
        try:
            validator.validate(json.loads(text))
            good += 1
        except (ValueError, ValidationError) as error:
            print(f"{text!r} is wrong: {str(error).splitlines()[0]}")
    note = f"{len(found)} ended by themselves within {VALID_TOKENS} tokens"
    return Row(case="valid outputs", ours=good, unit=f"of {NUM_VALID}", target=NUM_VALID, note=note)


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=0, help="0: all")
    options = parser.parse_args()
    config = EngineConfig(threads=options.threads, kv_bytes=512 << 20)
    folder = resolve_model(config)
    print(machine())
    rows, samples = mask_rows(folder), []
    decoding = Decoding(config, folder)
    for batch in BATCHES:
        case = f"decode, batch {batch}, JSON schema"
        sides = {
            "guided": partial(decoding.decode, batch, GRAMMARS["JSON schema"]),
            "free": partial(decoding.decode, batch, None),
        }
        found = take_turns(sides, repeats=options.repeats)
        guided, free = medians(found)
        rows.append(Row(case=case, ours=guided, unit="tok/s", beside=free, target=TARGET))
        samples += samples_of(case, found, "tok/s")
    rows.append(valid_row(decoding, folder))
    show(f"Grammars: {decoding}", rows, beside="free")
    write("grammar", rows, samples)


if __name__ == "__main__":
    main()
