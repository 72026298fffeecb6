"""Our engine beside `transformers`, one process, same weights, same threads: `python -m bench.engine`.

    decode    1, 8 and 32 sequences with 64, 512 and 2,048 tokens of context: tokens a second over some tens of steps
    prefill   a prompt of 128, 700 and 2,000 tokens to its first token, in chunks of `max_batched_tokens` as the
              scheduler would cut it: prompt tokens a second

Both sides take turns after a warm-up; medians are shown, every repeat goes to bench/results/engine.samples.csv. A
context is computed once for one sequence and copied to the others (our blocks by a plan's copies), since its content
is nothing to speed; every repeat decodes from the same place again. `transformers` keeps its default cache, which it
copies at every step: that is what one gets from it.
"""

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from bench.report import Row, machine, medians, samples_of, show, take_turns, write
from engine.config import EngineConfig
from engine.model.folder import ModelFolder, resolve_model
from engine.model.link import Link
from engine.model.runner import ModelRunner
from engine.request import BlockId, SamplingParams, SequenceId
from engine.step import BlockCopy, SequenceStep, StepPlan, TableWrite

BATCHES, CONTEXTS, PROMPTS = (1, 8, 32), (64, 512, 2048), (128, 700, 2000)
STEPS, LONG_STEPS = 48, 16  # of a decode; of one over more than LONG_KV tokens in all
LONG_KV = 8192
GREEDY = SamplingParams(temperature=0.0)
TARGETS = {"decode, batch 8, context 64": 1.5, "prefill, 700 tokens": 1.0}


@dataclass(frozen=True, slots=True)
class DecodeCase:
    """Sequences that generate `steps` tokens each, all behind `context` tokens."""

    batch: int
    context: int

    @property
    def steps(self) -> int:
        """Steps of one measurement."""
        return STEPS if self.batch * self.context <= LONG_KV else LONG_STEPS

    def __str__(self) -> str:
        return f"decode, batch {self.batch}, context {self.context:,}"


class Ours:
    """Drives the runner with plans as the scheduler makes them, without the scheduler."""

    def __init__(self, config: EngineConfig, folder: ModelFolder, link: Link | None = None) -> None:
        self._runner = ModelRunner(config, folder, link)
        self._chunk = config.max_batched_tokens

    def __str__(self) -> str:
        return f"tollgate ({self._runner.kernel_backend}, {self._runner.dtype})"

    def prefill(self, num_tokens: int) -> float:
        """Compute a prompt in row 0; return its tokens a second."""
        began = time.perf_counter()
        self._compute(num_tokens)
        return num_tokens / (time.perf_counter() - began)

    def fill(self, case: DecodeCase) -> None:
        """Give every sequence its context."""
        columns = self._columns(case.context + case.steps)
        self._compute(case.context, columns)
        copies = [
            BlockCopy(BlockId(column), BlockId(row * columns + column))
            for row in range(1, case.batch)
            for column in range(self._columns(case.context))
        ]
        self._step([part(0, case.context, [100])], self._tables(case.batch, columns), tuple(copies))

    def decode(self, case: DecodeCase) -> float:
        """Generate tokens behind the contexts; return tokens a second."""
        began = time.perf_counter()
        self.generate(case, case.steps)
        return case.steps * case.batch / (time.perf_counter() - began)

    def generate(self, case: DecodeCase, steps: int) -> list[list[int]]:
        """Return the tokens of each step."""
        tokens, found = [100 + row for row in range(case.batch)], []
        for step in range(steps):
            tokens = self._step([part(row, case.context + step, [token]) for row, token in enumerate(tokens)])
            found.append(tokens)
        return found

    def _columns(self, num_tokens: int) -> int:
        return -(-num_tokens // self._runner.shape.block_size)

    def _tables(self, rows: int, columns: int) -> tuple[TableWrite, ...]:
        return tuple(
            TableWrite(row=row, column=0, blocks=tuple(BlockId(row * columns + column) for column in range(columns)))
            for row in range(rows)
        )

    def _compute(self, num_tokens: int, columns: int = 0) -> None:
        prompt = _prompt(num_tokens)
        tables = self._tables(1, columns or self._columns(num_tokens))
        for start in range(0, num_tokens, self._chunk):
            chunk = prompt[start : start + self._chunk]
            last = start + len(chunk) == num_tokens
            self._step([part(0, start, chunk, sampled=last)], tables if start == 0 else ())

    def _step(
        self, parts: list[SequenceStep], tables: tuple[TableWrite, ...] = (), copies: tuple[BlockCopy, ...] = ()
    ) -> list[int]:
        plan = StepPlan(number=0, sequences=tuple(parts), table_writes=tables, copies=copies)
        return list(self._runner.launch(plan).wait().token_ids)


class Theirs:
    """`transformers`, its own cache and attention (SDPA), driven step by step without `generate`'s overhead."""

    def __init__(self, folder: ModelFolder, dtype: str) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self._torch = torch
        self._model = AutoModelForCausalLM.from_pretrained(folder.path, dtype=getattr(torch, dtype)).eval()

    def __str__(self) -> str:
        return "transformers"

    def prefill(self, num_tokens: int) -> float:
        """Compute a prompt; return its tokens a second."""
        began = time.perf_counter()
        self._compute(num_tokens)
        return num_tokens / (time.perf_counter() - began)

    def fill(self, case: DecodeCase) -> None:
        """Give every sequence its context."""
        self._compute(case.context)
        self._cache.batch_repeat_interleave(case.batch)

    def decode(self, case: DecodeCase) -> float:
        """Generate tokens behind the contexts; return tokens a second."""
        ids = self._torch.arange(100, 100 + case.batch)[:, None]
        began = time.perf_counter()
        with self._torch.inference_mode():
            for _ in range(case.steps):
                out = self._model(ids, cache=self._cache, use_cache=True, logits_to_keep=1)
                ids = out.logits[:, -1].argmax(-1)[:, None]
        seconds = time.perf_counter() - began
        self._cache.crop(-case.steps)
        return case.steps * case.batch / seconds

    def _compute(self, num_tokens: int) -> None:
        with self._torch.inference_mode():
            out = self._model(self._torch.tensor([_prompt(num_tokens)]), use_cache=True, logits_to_keep=1)
        self._cache = out.past_key_values
        out.logits[:, -1].argmax(-1).tolist()


def _prompt(num_tokens: int) -> list[int]:
    return [(31 * index) % 40000 + 100 for index in range(num_tokens)]


def part(row: int, start: int, token_ids: list[int], *, sampled: bool = True) -> SequenceStep:
    """Return a row's tokens from `start` on, as a part of a step."""
    sampling = GREEDY if sampled else None
    return SequenceStep(sequence=SequenceId(row), row=row, start=start, token_ids=token_ids, sampling=sampling)


def measure(ours: Ours, theirs: Theirs, repeats: int) -> Iterator[tuple[str, dict[str, list[float]]]]:
    """Yield each case with the tokens a second of both sides."""
    sides: dict[str, Ours | Theirs] = {"ours": ours, "transformers": theirs}
    for context in CONTEXTS:
        for batch in BATCHES:
            case = DecodeCase(batch, context)
            for side in sides.values():
                side.fill(case)
            yield (
                str(case),
                take_turns({name: partial(side.decode, case) for name, side in sides.items()}, repeats=repeats),
            )
    for num_tokens in PROMPTS:
        yield (
            f"prefill, {num_tokens:,} tokens",
            take_turns({name: partial(side.prefill, num_tokens) for name, side in sides.items()}, repeats=repeats),
        )


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=0, help="of both sides; 0: all")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--weight-dtype", default="auto", choices=("auto", "int8"), help="of ours")
    options = parser.parse_args()
    config = EngineConfig(
        dtype=options.dtype, weight_dtype=options.weight_dtype, threads=options.threads, kv_bytes=2 << 30
    )
    folder = resolve_model(config)
    print(machine())
    ours, theirs = Ours(config, folder), Theirs(folder, options.dtype)
    rows, samples = [], []
    for case, found in measure(ours, theirs, options.repeats):
        mine, peer = medians(found)
        rows.append(Row(case=case, ours=mine, unit="tok/s", beside=peer, target=TARGETS.get(case)))
        samples += samples_of(case, found, "tok/s")
        print(f"{case}: {mine:.0f} beside {peer:.0f} tok/s", flush=True)
    show(f"Engine without its front: {ours}", rows, beside=str(theirs))
    write("engine", rows, samples)


if __name__ == "__main__":
    main()
