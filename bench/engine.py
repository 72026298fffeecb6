"""Our engine beside `transformers`, one process, same weights, same threads: `python -m bench.engine`.

Decode: 8 sequences of 128 tokens of context, 48 steps, tokens a second. Prefill: a prompt of 700 tokens to its first
token, in chunks of `max_batched_tokens` as the scheduler would cut it. Both sides take turns after a warm-up; medians
are shown, every repeat goes to bench/results/engine.csv.
"""

import argparse
import csv
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from engine.config import EngineConfig
from engine.model.folder import ModelFolder, resolve_model
from engine.model.runner import ModelRunner
from engine.request import BlockId, SamplingParams, SequenceId
from engine.step import SequenceStep, StepPlan, TableWrite

BATCH, CONTEXT, STEPS, PROMPT = 8, 128, 48, 700
RESULTS = Path(__file__).parent / "results" / "engine.csv"


class Ours:
    """Drives the runner with plans as the scheduler makes them, without the scheduler."""

    def __init__(self, config: EngineConfig, folder: ModelFolder) -> None:
        self._runner = ModelRunner(config, folder)
        self._chunk = config.max_batched_tokens

    def __str__(self) -> str:
        return f"tollgate ({self._runner.kernel_backend}, {self._runner.dtype})"

    def prefill(self, prompts: list[list[int]]) -> list[int]:
        """Compute the prompts, one after another, and return each one's first token."""
        size = self._runner.shape.block_size
        columns = -(-(len(prompts[0]) + STEPS) // size)
        tokens = []
        for row, prompt in enumerate(prompts):
            for start in range(0, len(prompt), self._chunk):
                blocks = tuple(BlockId(row * columns + column) for column in range(columns)) if start == 0 else ()
                chunk = prompt[start : start + self._chunk]
                last = start + len(chunk) == len(prompt)
                tokens += self._step([_part(row, start, chunk, sampled=last)], row, blocks)
        return tokens

    def decode(self, tokens: list[int], start: int) -> float:
        """Generate STEPS tokens for every sequence; return tokens a second."""
        began = time.perf_counter()
        for step in range(STEPS):
            tokens = self._step([_part(row, start + step, [token], sampled=True) for row, token in enumerate(tokens)])
        return STEPS * len(tokens) / (time.perf_counter() - began)

    def _step(self, parts: list[SequenceStep], row: int = 0, blocks: tuple[BlockId, ...] = ()) -> list[int]:
        writes = (TableWrite(row=row, column=0, blocks=blocks),) if blocks else ()
        plan = StepPlan(number=0, sequences=tuple(parts), table_writes=writes)
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

    def prefill(self, prompts: list[list[int]]) -> list[int]:
        """Compute the prompts as one batch; keep the cache."""
        with self._torch.inference_mode():
            out = self._model(self._torch.tensor(prompts), use_cache=True, logits_to_keep=1)
        self._cache = out.past_key_values
        tokens: list[int] = out.logits[:, -1].argmax(-1).tolist()
        return tokens

    def decode(self, tokens: list[int], start: int) -> float:
        """Generate STEPS tokens for every sequence; return tokens a second."""
        began = time.perf_counter()
        with self._torch.inference_mode():
            ids = self._torch.tensor(tokens)[:, None]
            for _ in range(STEPS):
                out = self._model(ids, past_key_values=self._cache, use_cache=True, logits_to_keep=1)
                ids = out.logits[:, -1].argmax(-1)[:, None]
        return STEPS * len(tokens) / (time.perf_counter() - began)


def _part(row: int, start: int, token_ids: list[int], *, sampled: bool) -> SequenceStep:
    sampling = SamplingParams(temperature=0.0) if sampled else None
    return SequenceStep(sequence=SequenceId(row), row=row, start=start, token_ids=token_ids, sampling=sampling)


def measure_decode(side: Ours | Theirs) -> float:
    """Return tokens a second at batch 8."""
    prompts = [[(17 * row + 31 * index) % 40000 + 100 for index in range(CONTEXT)] for row in range(BATCH)]
    return side.decode(side.prefill(prompts), CONTEXT)


def measure_prefill(side: Ours | Theirs) -> float:
    """Return prompt tokens a second for one prompt."""
    prompt = [(31 * index) % 40000 + 100 for index in range(PROMPT)]
    began = time.perf_counter()
    side.prefill([prompt])
    return PROMPT / (time.perf_counter() - began)


def compare(ours: Ours, theirs: Theirs, repeats: int) -> list[dict[str, str]]:
    """Alternate the sides, print medians and ratios, return every repeat."""
    rows = []
    cases: tuple[tuple[str, Callable[[Ours | Theirs], float], float], ...] = (
        (f"decode, batch {BATCH}", measure_decode, 1.5),
        (f"prefill, {PROMPT} tokens", measure_prefill, 1.0),
    )
    print(f"{'case':24}{ours!s:>28}{theirs!s:>18}{'ratio':>8}{'target':>8}")
    for name, measure, target in cases:
        speeds: dict[str, list[float]] = {str(ours): [], str(theirs): []}
        for side in (ours, theirs):
            measure(side)  # warm-up
        for repeat in range(repeats):
            for side in (ours, theirs) if repeat % 2 == 0 else (theirs, ours):
                speeds[str(side)].append(measure(side))
                rows.append({"case": name, "side": str(side), "tokens_per_second": f"{speeds[str(side)][-1]:.1f}"})
        mine, peer = (statistics.median(speeds[str(side)]) for side in (ours, theirs))
        print(f"{name:24}{mine:>24.0f} t/s{peer:>14.0f} t/s{mine / peer:>8.2f}{target:>8.2f}")
    return rows


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    options = parser.parse_args()
    config = EngineConfig(dtype=options.dtype, threads=options.threads, kv_bytes=256 << 20)
    folder = resolve_model(config)
    rows = compare(Ours(config, folder), Theirs(folder, options.dtype), options.repeats)
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    with RESULTS.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    print(f"every repeat: {RESULTS}")


if __name__ == "__main__":
    main()
