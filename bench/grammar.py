"""What a grammar costs a decode: `python -m bench.grammar`.

    decode    1, 8 and 32 outputs of the default model at temperature 1 through scheduler and runner, each following a
              JSON schema, beside as many that are free: tokens a second
    mask      the constraint alone: microseconds for taking a token and filling the mask, over the tokens of those
              outputs, by the same schema and by a regular expression
    prepare   a schema from its text to its first mask: milliseconds

Outputs of both kinds have the same prompts, lengths and seeds, and run as long as they are measured. A grammar may cost
a tenth of the speed at most.
"""

import argparse
import json
import random
import statistics
import time
from functools import partial

import numpy as np

from bench.report import Row, machine, medians, samples_of, show, take_turns, write
from engine.config import EngineConfig
from engine.constraints.compile import open_compiler
from engine.core import make_scheduler
from engine.model.folder import ModelFolder, resolve_model
from engine.model.runner import ModelRunner
from engine.policy import PolicyUpdate, TenantPolicy
from engine.request import GenerationRequest, Grammar, GrammarKind, RequestId, SamplingParams, SequenceId, TenantId

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

    def _submit(self, number: int, grammar: Grammar | None) -> SequenceId:
        handle, self._next = SequenceId(self._next), self._next + 1
        request = GenerationRequest(
            request_id=RequestId(str(handle)),
            tenant=TenantId("bench"),
            namespace=b"",
            prompt=[(31 * place + number) % 40000 + 100 for place in range(PROMPT_TOKENS)],
            sampling=SamplingParams(
                max_tokens=STEPS + 64, seed=number, grammar=grammar, ignore_eos=grammar is None, temperature=1.0
            ),
        )
        self._scheduler.submit(handle, request)
        return handle

    def _step(self) -> None:
        plan = self._scheduler.plan()
        if plan is None:
            time.sleep(0.0001)  # the grammar is being prepared, or a mask made
            return
        self._scheduler.commit(plan, self._runner.launch(plan).wait())


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
    show(f"Grammars: {decoding}", rows, beside="free")
    write("grammar", rows, samples)


if __name__ == "__main__":
    main()
