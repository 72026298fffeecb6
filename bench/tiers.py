"""Sessions that come back from host memory and from disk: `python -m bench.tiers [--repeats 7] [--parked 500]`.

The whole product as a client sees it, with the default model and a device pool of 12 sessions; `/v1/sessions` says in
which tier a session is before it is asked for.

    cold            1,430 tokens that nobody has sent before
    device, host    the next turn of a session that is still on the device; that only host memory has
    disk            the same after the worker was restarted
    parked          decode speed of 8 streams on an idle pool that holds 10 of them, and with 500 sessions parked below
                    it; once more when these have been erased

The time runs from sending a request to its first text. Cases take turns; medians are shown, and every measurement goes
to bench/results/tiers.samples.csv. Copy rates stand beside this machine's own (bench/tier_rates.py).
"""

import argparse
import asyncio
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx

from bench.management import Operator
from bench.peers.client import Answer, Endpoint, complete
from bench.peers.environment import PeerError
from bench.peers.freezer import Freezer
from bench.peers.servers import OurServer
from bench.report import Row, machine, show, write
from bench.serving import Prompts
from bench.tier_rates import disk_rates, memory_rates

PROMPT, NEXT = 1430, 8  # tokens of a session, and of what its next turn adds
BLOCK_BYTES, BLOCK_TOKENS = 368_640, 16  # of the default model
POOL_SESSIONS = 12
STREAMS, STREAM_PROMPT, STREAM_OUTPUT = 8, 192, 96  # the streams that are measured beside parked sessions
WAIT_SECONDS = 120.0
HOST_TARGET, DISK_TARGET, PARKED_TARGET = 1 / 10, 1 / 5, 0.95

Samples = list[dict[str, object]]


class Sessions:
    """One tenant's sessions: asks for turns, and where their blocks are."""

    def __init__(self, endpoint: Endpoint, prompts: Prompts) -> None:
        self._endpoint, self._prompts = endpoint, prompts
        self._http = httpx.Client(
            base_url=endpoint.base_url, headers={"authorization": f"Bearer {endpoint.key}"}, timeout=WAIT_SECONDS
        )
        self._count = 0
        self.texts: dict[str, str] = {}

    def first_turn(self) -> tuple[str, float]:
        """Begin a session; return it and the seconds to its first text."""
        self._count += 1
        name = f"bench-{os.getpid()}-{self._count}"
        self.texts[name] = self._prompts.take(1, PROMPT)[0]
        return name, self._ask(name, 0)

    def next_turn(self, name: str) -> float:
        """Go on with a session; return the seconds to its first text."""
        self.texts[name] += " " + self._prompts.take(1, NEXT)[0]
        return self._ask(name, PROMPT // BLOCK_TOKENS * BLOCK_TOKENS)

    def tier(self, name: str) -> dict[str, Any]:
        """Return what the API says of a session."""
        response = self._http.get(f"sessions/{name}")
        if not response.is_success:
            raise PeerError(f"session {name}: {response.status_code}: {response.text}")
        return dict(response.json())

    def wait(self, what: str, is_so: Callable[[], bool]) -> None:
        """Wait until something is so."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not is_so():
            if time.monotonic() > deadline:
                raise PeerError(f"waited {WAIT_SECONDS:.0f} s for {what}")
            time.sleep(0.05)

    def wait_for(self, name: str, figure: str, is_so: Callable[[int], bool]) -> None:
        """Wait until a figure of a session is so."""
        self.wait(f"{figure} of {name}", lambda: is_so(int(self.tier(name)[figure])))

    def erase(self, names: Iterable[str]) -> None:
        """Erase sessions."""
        for name in names:
            self._http.delete(f"sessions/{name}").raise_for_status()

    def _ask(self, name: str, num_cached: int) -> float:
        body = {
            "model": self._endpoint.model,
            "prompt": self.texts[name],
            "session_id": name,
            "max_tokens": 2,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        began, seconds = time.perf_counter(), 0.0
        usage: dict[str, Any] = {}
        with self._http.stream("POST", "completions", json=body) as response:
            if response.status_code != 200:
                raise PeerError(f"{response.status_code}: {response.read().decode()}")
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line.removeprefix("data: "))
                    if not seconds and any(choice.get("text") for choice in event.get("choices", ())):
                        seconds = time.perf_counter() - began
                    usage = event.get("usage") or usage
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        if not seconds or cached < num_cached or (num_cached == 0 and cached > BLOCK_TOKENS):
            raise PeerError(f"{name}: no text, or not as it should be cached: {usage}")
        return seconds


def returns(server: OurServer, sessions: Sessions, repeats: int) -> dict[str, list[float]]:
    """Measure first turns and next turns from each tier."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    waiting: list[str] = []
    for number in range(-2, repeats):
        name, seconds = sessions.first_turn()
        _keep(found, "cold", seconds, number)
        waiting.append(name)
        others = [sessions.first_turn()[0] for _ in range(POOL_SESSIONS + 2)]
        sessions.wait_for(name, "device_bytes", lambda held: held == 0)
        _keep(found, "device", sessions.next_turn(others[-1]), number)
        _keep(found, "host", sessions.next_turn(name), number)
        sessions.erase(others)
        print(f"turn {number + 3} of {repeats + 2}", flush=True)
    whole = PROMPT // BLOCK_TOKENS * BLOCK_BYTES
    for name in waiting:
        sessions.wait_for(name, "disk_bytes", lambda held: held >= whole)
    restart(server, sessions)
    for number, name in enumerate(waiting, -2):
        before = sessions.tier(name)
        if before["device_bytes"] or before["host_bytes"]:
            raise PeerError(f"after a restart {name} is not on disk alone: {before}")
        _keep(found, "disk", sessions.next_turn(name), number)
        _keep(found, "cold", sessions.first_turn()[1], number)
    return found


def _keep(found: dict[str, list[float]], case: str, seconds: float, number: int) -> None:
    if number >= 0:  # what comes before is to warm up
        found[case].append(seconds)


def restart(server: OurServer, sessions: Sessions) -> None:
    """End the worker, wait for the next one, and warm that up."""
    workers = _workers(server)
    for pid in workers:
        os.kill(pid, signal.SIGTERM)
    sessions.wait("the worker's end", lambda: not workers & _workers(server))

    def answers() -> bool:
        try:
            sessions.first_turn()
        except (PeerError, httpx.HTTPError):
            return False
        return True

    sessions.wait("the next worker", answers)
    for _ in range(2):
        sessions.next_turn(sessions.first_turn()[0])


def _workers(server: OurServer) -> set[int]:
    return {pid for pid, command in server.processes().items() if command.rstrip().endswith("-m engine")}


def parked(
    sessions: Sessions, endpoint: Endpoint, prompts: Prompts, num_parked: int, repeats: int
) -> list[list[float]]:
    """Measure decode speed on an idle pool, with sessions parked, and when they are erased."""

    def streams(names: list[str], texts: list[str], max_tokens: int) -> list[Answer]:
        async def run() -> list[Answer]:
            extras = [replace(endpoint, extra={"session_id": name}) for name in names]
            return list(
                await asyncio.gather(
                    *(complete(one, text, max_tokens=max_tokens) for one, text in zip(extras, texts, strict=True))
                )
            )

        return asyncio.run(run())

    def speed() -> float:
        answers = streams(active, prompts.take(STREAMS, STREAM_PROMPT), STREAM_OUTPUT)
        begin = max(answer.text_times[0] for answer in answers)
        end = min(answer.text_times[-1] for answer in answers)
        times = [at for answer in answers for at in answer.text_times if begin < at <= end]
        return len(times) / (end - begin)

    active = [f"active-{os.getpid()}-{number}" for number in range(STREAMS)]
    speed()
    idle = [speed() for _ in range(repeats)]
    names = [f"parked-{os.getpid()}-{number}" for number in range(num_parked)]
    for start in range(0, num_parked, 4):
        batch = names[start : start + 4]
        streams(batch, prompts.take(len(batch), STREAM_PROMPT), 1)
    print(f"{num_parked} sessions are parked", flush=True)
    beside = [speed() for _ in range(repeats)]
    sessions.erase(names)
    return [idle, beside, [speed() for _ in range(repeats)]]


def start(folder: Path, freezer: Freezer, pool_tokens: int) -> OurServer:
    """Start the product with a pool of so many tokens, host memory and a disk."""
    blocks = -(-pool_tokens // BLOCK_TOKENS)
    environment = {
        "ENGINE_DTYPE": "bfloat16",
        "ENGINE_KV_BYTES": str(blocks * BLOCK_BYTES),
        "ENGINE_HOST_BYTES": "2GiB",
        "ENGINE_DISK_BYTES": "4GiB",
        "ENGINE_DISK_DIR": str(folder / "disk"),
    }
    server = OurServer("tollgate", folder / "var", environment, freezer=freezer)
    with Operator(server) as operator:
        operator.set_all({"whale": {"host_bytes": 2 << 30, "disk_bytes": 4 << 30}})
    return server


def measure(options: argparse.Namespace) -> tuple[list[Row], Samples]:
    """Run all parts."""
    rows, samples = memory_rates(3 * options.repeats)
    prompts = Prompts(options.seed)
    with tempfile.TemporaryDirectory(prefix="tollgate-bench-", dir=options.folder) as name, Freezer() as freezer:
        folder = Path(name)
        more, others = disk_rates(folder, BLOCK_BYTES, options.repeats)
        rows, samples = rows + more, samples + others
        for part, pool in (
            ("returns", POOL_SESSIONS * (PROMPT + 64)),
            ("parked", 10 * (STREAM_PROMPT + STREAM_OUTPUT)),
        ):
            with ExitStack() as stack:
                (folder / part).mkdir()
                server = start(folder / part, freezer, pool)
                stack.callback(server.stop)
                sessions = Sessions(server.endpoint, prompts)
                if part == "returns":
                    found = returns(server, sessions, options.repeats)
                    rows += _return_rows(found)
                    samples += _lines(found, "time to first token", "s")
                else:
                    speeds = parked(sessions, server.endpoint, prompts, options.parked, options.repeats)
                    rows += _parked_rows(speeds, options.parked)
                    found = dict(zip(("idle", "parked", "erased"), speeds, strict=True))
                    samples += _lines(found, f"{STREAMS} streams", "tok/s")
    return rows, samples


def _return_rows(found: dict[str, list[float]]) -> list[Row]:
    cold = statistics.median(found["cold"])
    targets = {"host": HOST_TARGET, "disk": DISK_TARGET}
    return [Row(case=f"first token, {PROMPT} tokens, cold", ours=cold, unit="s")] + [
        Row(
            case=f"first token, session on {case}",
            ours=statistics.median(found[case]),
            unit="s",
            beside=cold,
            target=targets.get(case),
            at_least=False,
        )
        for case in ("device", "host", "disk")
    ]


def _parked_rows(speeds: list[list[float]], num_parked: int) -> list[Row]:
    idle, beside, erased = map(statistics.median, speeds)
    return [
        Row(case=f"{STREAMS} streams, idle pool", ours=idle, unit="tok/s"),
        Row(
            case=f"{STREAMS} streams, {num_parked} sessions parked",
            ours=beside,
            unit="tok/s",
            beside=idle,
            target=PARKED_TARGET,
        ),
        Row(case=f"{STREAMS} streams, these erased", ours=erased, unit="tok/s", beside=idle),
    ]


def _lines(found: dict[str, list[float]], case: str, unit: str) -> Samples:
    return [
        {"case": case, "side": side, "repeat": repeat, "value": f"{value:.6g}", "unit": unit}
        for side, values in found.items()
        for repeat, value in enumerate(values)
    ]


def main() -> int:
    """Measure, print, write. Exit status 1: something could not be measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--parked", type=int, default=500, help="sessions")
    parser.add_argument("--seed", type=int, default=1, help="of the texts")
    parser.add_argument("--folder", help="where the disk tier is to be; default: the system's temporary folder")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server is stopped
    print(machine())
    try:
        rows, samples = measure(options)
    except PeerError as error:
        print(f"bench.tiers: {error}", file=sys.stderr)
        return 1
    show("Tiers", rows)
    write("tiers", rows, samples)
    return 0


if __name__ == "__main__":
    sys.exit(main())
