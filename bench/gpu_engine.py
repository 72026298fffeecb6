"""The engine's decode on a GPU at the shapes of Llama-3-8B, random weights: the third part of `bench.gpu`.

A step reads all weights but the embedding, and the keys and values of its contexts; at the measured copy bandwidth that
takes a time, which is what the speed is put beside.
"""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

import torch

from bench.engine import DecodeCase, Ours, part
from bench.gpu_correct import Finding
from bench.gpu_limits import Limits
from bench.report import Row, medians, take_turns
from engine.config import EngineConfig
from engine.model.folder import ModelFolder, read_folder
from engine.model.lanes import IN_FLIGHT
from engine.step import SequenceStep, StepHandle, StepPlan, placeholder
from tests.engine.model.device_like import Rerun, device_like

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 16384,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "eos_token_id": 128001,
}
TINY = LLAMA | {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 40960,
    "max_position_embeddings": 1024,
    "eos_token_id": 1,
}
CASES = tuple(DecodeCase(batch, context) for context in (1024, 8192) for batch in (1, 8, 32, 128))
PROMPTS = (700, 2000, 8192)
FREE = 12 << 30  # bytes of the GPU that weights in the making and activations take beside weights and pool
CHUNK = 8192  # tokens of a step


class OnGpu(Ours):
    """Drives the runner as the engine's loop does on a GPU: a step is launched before the last one is waited for."""

    def __init__(self, config: EngineConfig, folder: ModelFolder) -> None:
        """Load; without a GPU, all but CUDA itself is as it is with one."""
        super().__init__(config, folder, device_like(Rerun()) if config.device == "cpu" else None)
        self.launching: list[float] = []  # seconds of the host to launch a step
        self.computing: list[float] = []  # seconds of a step on the device

    @property
    def num_graphs(self) -> int:
        """How many graphs its runner has."""
        return self._runner.num_graphs

    def decode_ahead(self, case: DecodeCase) -> float:
        """Generate tokens behind the contexts, a step ahead; return tokens a second."""
        began = time.perf_counter()
        self.generate_ahead(case, case.steps)
        return case.steps * case.batch / (time.perf_counter() - began)

    def generate_ahead(self, case: DecodeCase, steps: int) -> list[list[int]]:
        """Return the tokens of each step, which the host knows when the next one has been launched."""
        self.launching, self.computing = [], []
        found: list[list[int]] = []
        flying: list[StepHandle] = []
        for step in range(steps):
            tokens = [placeholder(row) if step else 100 + row for row in range(case.batch)]
            flying.append(self._launch([part(row, case.context + step, [one]) for row, one in enumerate(tokens)]))
            if len(flying) == IN_FLIGHT:
                found.append(self._wait(flying.pop(0)))
        return found + [self._wait(handle) for handle in flying]

    def _launch(self, parts: list[SequenceStep]) -> StepHandle:
        began = time.perf_counter()
        handle = self._runner.launch(StepPlan(number=0, sequences=tuple(parts), table_writes=()))
        self.launching.append(time.perf_counter() - began)
        return handle

    def _wait(self, handle: StepHandle) -> list[int]:
        result = handle.wait()
        self.computing.append(result.seconds)
        return list(result.token_ids)


def engine_rows(limits: Limits, scratch: Path, *, tiny: bool, repeats: int, graphs: bool) -> Iterator[Row]:
    """Yield tokens a second: decode by batch and context, a step ahead and in turn, then prefill; without graphs,
    decode alone.
    """
    shapes = TINY if tiny else LLAMA
    config = replace(_config(scratch, shapes, tiny=tiny), graphs="auto" if graphs else "off")
    ours = OnGpu(config, _folder(scratch, shapes))
    print(f"{ours}: {ours.num_graphs} graphs", flush=True)
    token_bytes = _kv_bytes(shapes, itemsize=4 if tiny else 2)
    for case in (DecodeCase(2, 16),) if tiny else CASES:
        if case.batch * (case.context + case.steps + 16) * token_bytes > config.kv_bytes:
            print(f"{case}: left out, its KV does not fit the GPU")
            continue
        ours.fill(case)
        limit = case.batch * limits.copy / (_weight_bytes(shapes) + case.batch * case.context * token_bytes)
        yield _ahead_row(ours, case, limit, repeats, "" if graphs else ", no graphs")
        if graphs:
            yield _in_turn_row(ours, case, limit, repeats)
    for num_tokens in () if not graphs else (20,) if tiny else PROMPTS:
        yield _prefill_row(ours, num_tokens, limits.flops, _weight_bytes(shapes), repeats)


def _ahead_row(ours: OnGpu, case: DecodeCase, limit: float, repeats: int, words: str) -> Row:
    """Measure steps that are launched ahead."""
    (speed,) = medians(take_turns({"ours": partial(ours.decode_ahead, case)}, repeats=repeats))
    step, device, host = case.batch / speed, median(ours.computing), median(ours.launching)
    note = f"{step * 1e3:.2f} ms a step: device {device * 1e3:.2f}, launch {host * 1e3:.2f}"
    return Row(case=f"{case}{words}", ours=speed, unit="tok/s", beside=limit, note=note)


def _in_turn_row(ours: OnGpu, case: DecodeCase, limit: float, repeats: int) -> Row:
    """Measure steps that wait for the one before them."""
    (speed,) = medians(take_turns({"ours": partial(ours.decode, case)}, repeats=repeats))
    note = f"{case.batch / speed * 1e3:.2f} ms a step"
    return Row(case=f"{case}, in turn", ours=speed, unit="tok/s", beside=limit, note=note)


def _prefill_row(ours: OnGpu, num_tokens: int, flops: float, weight_bytes: int, repeats: int) -> Row:
    """Measure a prompt; a token takes two operations for each weight of two bytes."""
    (speed,) = medians(take_turns({"ours": partial(ours.prefill, num_tokens)}, repeats=repeats))
    note = f"linears at {speed * weight_bytes / 1e12:.0f} Tflop/s"
    case = f"prefill, {num_tokens:,} tokens"
    return Row(case=case, ours=speed, unit="tok/s", beside=flops / weight_bytes, note=note)


def agree(scratch: Path, *, tiny: bool) -> Iterator[Finding]:
    """Generate greedily in float32 in all the ways that a runner has: the tokens must be those of the reference.

    So it is checked as it runs here: its graphs in several buckets, its tables and copies of blocks, steps ahead.
    """
    shapes = TINY | ({} if tiny else {"num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 4})
    folder = _folder(scratch, shapes)
    plain = replace(
        _config(scratch, TINY, tiny=True), device="cpu" if tiny else "cuda", kv_bytes=64 << 20, graphs="off"
    )
    cases, steps = (
        ((DecodeCase(3, 40),), 2) if tiny else ((DecodeCase(3, 600), DecodeCase(1, 505), DecodeCase(5, 40)), 16)
    )
    reference = _tokens(OnGpu(replace(plain, backend="reference"), folder), cases, steps)
    for name, graphs in (("kernel by kernel", "off"), ("by graphs", "auto")):
        ours = OnGpu(replace(plain, backend="triton", graphs=graphs), folder)
        missing = "no graph was recorded; see the log" if graphs == "auto" and not ours.num_graphs else ""
        yield _finding(f"{name}, in turn", reference, _tokens(ours, cases, steps), missing)
        yield _finding(f"{name}, ahead", reference, _tokens(ours, cases, steps, ahead=True), missing)


def _tokens(ours: OnGpu, cases: Sequence[DecodeCase], steps: int, *, ahead: bool = False) -> list[list[int]]:
    """Return the tokens of every step of every case."""
    found = []
    for case in cases:
        ours.fill(case)
        found += (ours.generate_ahead if ahead else ours.generate)(case, steps)
    return found


def _finding(name: str, expected: list[list[int]], found: list[list[int]], problem: str) -> Finding:
    same = sum(one == other for one, other in zip(expected, found, strict=True))
    if same < len(expected):
        problem = f"{same} of {len(expected)} steps alike: {expected}, {found} {problem}"[:300]
    return Finding(f"runner, {name}: tokens as by the reference", "float32", 0.0, problem)


def _config(scratch: Path, shapes: dict[str, object], *, tiny: bool) -> EngineConfig:
    if tiny:
        return EngineConfig(
            model=str(scratch),
            load_format="dummy",
            device="cpu",
            backend="triton",
            dtype="float32",
            kv_bytes=1 << 20,
            max_batched_tokens=32,
            max_running=5,
        )
    free, _ = torch.cuda.mem_get_info()
    kv_bytes = free - _weight_bytes(shapes) - FREE
    return EngineConfig(
        model=str(scratch),
        load_format="dummy",
        device="cuda",
        dtype="bfloat16",
        kv_bytes=kv_bytes,
        max_batched_tokens=CHUNK,
    )


def _folder(scratch: Path, shapes: dict[str, object]) -> ModelFolder:
    """Write what a folder without weights needs and read it."""
    (scratch / "config.json").write_text(json.dumps(shapes))
    (scratch / "tokenizer.json").write_text(json.dumps({"added_tokens": []}))
    return read_folder(scratch, name="llama-3-8b-shapes", dummy=True)


def _number(shapes: dict[str, object], name: str) -> int:
    return int(str(shapes[name]))


def _kv_bytes(shapes: dict[str, object], *, itemsize: int) -> int:
    """Return bytes of one token's keys and values."""
    dim = _number(shapes, "hidden_size") // _number(shapes, "num_attention_heads")
    return 2 * _number(shapes, "num_key_value_heads") * dim * _number(shapes, "num_hidden_layers") * itemsize


def _weight_bytes(shapes: dict[str, object]) -> int:
    """Return bytes of the weights that a step reads, two each: the embedding is looked up, not read."""
    hidden, heads = _number(shapes, "hidden_size"), _number(shapes, "num_attention_heads")
    kv = hidden * _number(shapes, "num_key_value_heads") // heads
    layer = 2 * hidden * hidden + 2 * hidden * kv + 3 * hidden * _number(shapes, "intermediate_size")
    return 2 * (layer * _number(shapes, "num_hidden_layers") + hidden * _number(shapes, "vocab_size"))
