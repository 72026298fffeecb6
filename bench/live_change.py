"""A limit that moves every second under load: `python -m bench.live_change [--seconds 60]`.

Four whales send long prompts back to back and a minnow asks now and then (bench/neighbours.py), over HTTP, while an
operator sets the whale's hard limit, over the management API, once a second: in turn to more than all of its requests
hold together, and to what little more than one of them needs.

    errors       of any request of any client
    applied      from the commit of a change until the worker grants nothing above it any more
    settled      from there until the tenant is under it, beside the worker's own prediction
    above        the most that was held above the limit after it had settled, or above what was held before: by the
                 worker's statistics, whose peaks leave no step out

Where nobody is above the new limit the two moments are those of two messages, and nothing is predicted. A change that
the next one overtakes before it has settled is counted, and says nothing of the others.
"""

import argparse
import asyncio
import itertools
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.management import Operator
from bench.neighbours import MINNOW_EVERY, WHALES, Watched, Words, percentile, watch
from bench.peers.environment import PeerError
from bench.peers.freezer import Freezer
from bench.peers.servers import OurServer
from bench.peers.starts import tollgate
from bench.report import Row, machine, show, write
from tenants.contracts import PolicyAcks, WorkerAck
from tenants.reports import TenantUse, WorkerStats

HIGH, LOW = 256 << 20, 64 << 20  # bytes; a whale's request holds some 50 MB
EVERY = 1.0  # seconds between two changes
LOOK_EVERY = 0.05
APPLIED_MS = 1000.0


@dataclass
class Change:
    """A change of the limit, and what became of it."""

    version: int
    hard: int
    acks: PolicyAcks | None = None

    @property
    def ack(self) -> WorkerAck | None:
        """The worker's, once it has applied the change."""
        acks = self.acks.workers if self.acks is not None else ()
        return next((ack for ack in acks if ack.applied_at is not None), None)

    @property
    def settle_seconds(self) -> float | None:
        """From applied to settled; None: it was overtaken before."""
        if self.ack is None or self.ack.settled_at is None or self.ack.applied_at is None:
            return None
        return (self.ack.settled_at - self.ack.applied_at).total_seconds()


@dataclass
class Seen:
    """What the operator saw."""

    changes: list[Change] = field(default_factory=list)
    above_bytes: list[int] = field(default_factory=list)  # of each reading that lies within one change


class Mover:
    """The operator: moves the whale's limit until it is told to stop, and watches."""

    def __init__(self, server: OurServer) -> None:
        self.done = threading.Event()
        self._server = server
        self._seen = Seen()
        self._last: tuple[WorkerStats, TenantUse] | None = None

    def run(self) -> Seen:
        """Move and look until `done`; in a thread of its own."""
        with Operator(self._server) as operator:
            for hard in itertools.cycle((LOW, HIGH)):
                if self.done.is_set():
                    return self._seen
                self._move(operator, hard)
        raise AssertionError("a cycle does not end")

    def _move(self, operator: Operator, hard: int) -> None:
        """Set the limit, and look until the next change is due."""
        ends = time.monotonic() + EVERY
        change = Change(operator.change("whale", kv_hard_bytes=hard), hard)
        self._seen.changes.append(change)
        while time.monotonic() < ends:
            if change.settle_seconds is None:
                change.acks = operator.acks(change.version)
            if change.acks is not None:
                self._read(operator, change)
            time.sleep(LOOK_EVERY)

    def _read(self, operator: Operator, change: Change) -> None:
        """Take the next statistics; what the worker held since the last ones is judged if both are of this change."""
        stats = operator.stats()
        if stats is None or change.acks is None or (self._last and stats.at == self._last[0].at):
            return
        use = next((use for use in stats.tenants if use.tenant_id == change.acks.tenant_id), None)
        if use is None:
            return
        if self._last is not None and stats.applied_version == self._last[0].applied_version == change.version:
            before, ack = self._last, change.ack
            is_settled = ack is not None and ack.settled_at and ack.settled_at.timestamp() < before[0].at
            allowed = change.hard if is_settled else max(change.hard, before[1].kv_bytes)
            self._seen.above_bytes.append(max(0, use.kv_peak_bytes - allowed))
        self._last = stats, use


def run(server: OurServer, *, seconds: float, seed: int) -> tuple[Seen, Watched | None, list[str]]:
    """Load the server, move the limit, put it back; return what operator and clients saw, and the clients' errors."""
    minnow, whale = (
        replace(server.endpoint, key=server.serve["tenants"][slug]["api_key"]) for slug in ("minnow", "whale")
    )
    errors: list[str] = []
    watched: Watched | None = None
    mover = Mover(server)
    with Operator(server) as operator, ThreadPoolExecutor(1) as pool:
        before = operator.policy("whale").kv_hard_bytes
        moving = pool.submit(mover.run)
        try:
            watched = asyncio.run(watch(minnow, Words(seed), samples=int(seconds / MINNOW_EVERY), whales=whale))
        except* (PeerError, OSError, EOFError) as group:
            errors = [str(error) for error in group.exceptions]
        finally:
            mover.done.set()
            seen = moving.result()
            operator.set_all({"whale": {"kv_hard_bytes": before}})
    return seen, watched, errors


def rows_of(seen: Seen, watched: Watched | None, errors: Sequence[str]) -> list[Row]:
    """Return the table."""
    applied = [change.acks.ms for change in seen.changes if change.acks is not None and change.acks.ms is not None]
    settled = [(change.settle_seconds, change.ack) for change in seen.changes]
    known = [(seconds, ack.settle_seconds) for seconds, ack in settled if seconds is not None and ack is not None]
    if not applied or not known:
        raise PeerError("no change was applied and settled before the next one")
    draining = [(seconds, predicted) for seconds, predicted in known if predicted > 0.0]
    num_late = sum(seconds > predicted for seconds, predicted in draining)
    over = [change.ack.over_bytes for change in seen.changes if change.ack is not None and change.ack.over_bytes]
    num_open = len(seen.changes) - len(known)
    rows = [
        Row(case="changes", ours=len(seen.changes), unit="", note=f"{len(over)} found the whale above the new limit"),
        Row(case="errors of clients", ours=len(errors), unit="", target=0, at_least=False, note=" ".join(errors[:1])),
        Row(case="applied, median", ours=percentile(applied, 0.5), unit="ms"),
        Row(case="applied, p99", ours=percentile(applied, 0.99), unit="ms", target=APPLIED_MS, at_least=False),
        Row(case="settled after, median", ours=percentile([one for one, _ in known], 0.5) * 1000, unit="ms"),
        Row(case="settled after, p99", ours=percentile([one for one, _ in known], 0.99) * 1000, unit="ms"),
        Row(
            case="settled later than predicted",
            ours=num_late,
            unit="",
            target=0,
            at_least=False,
            note=f"of {len(draining)} that had to give back; {num_open} of all were overtaken, or the last one",
        ),
        Row(
            case="above a limit in force, most",
            ours=max(seen.above_bytes, default=0) / 1e6,
            unit="MB",
            target=0,
            at_least=False,
            note=f"{len(seen.above_bytes)} readings, {max(over, default=0) / 1e6:.0f} MB above when applied, at most",
        ),
    ]
    if watched is not None:
        rows.append(Row(case=f"{WHALES} whales", ours=watched.whale_tokens_per_second, unit="tok/s"))
    return rows


def lines_of(seen: Seen) -> list[dict[str, object]]:
    """Return every change as a CSV line."""
    return [
        {
            "version": change.version,
            "hard_bytes": change.hard,
            "applied_ms": "" if change.acks is None or change.acks.ms is None else f"{change.acks.ms:.1f}",
            "over_bytes": 0 if change.ack is None else change.ack.over_bytes,
            "settled_ms": "" if change.settle_seconds is None else f"{change.settle_seconds * 1000:.1f}",
            "predicted_ms": "" if change.ack is None else f"{change.ack.settle_seconds * 1000:.1f}",
        }
        for change in seen.changes
    ]


def main() -> int:
    """Run. Exit status 1: the server cannot be started or asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1, help="of the prompts")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server is stopped
    print(machine(), flush=True)
    try:
        with tempfile.TemporaryDirectory(prefix="tollgate-bench-") as name, Freezer() as freezer, ExitStack() as stack:
            server = tollgate().run(Path(name), freezer)
            stack.callback(server.stop)
            assert isinstance(server, OurServer), "it is ours"
            found = run(server, seconds=options.seconds, seed=options.seed)
        rows = rows_of(*found)
    except PeerError as error:
        print(f"bench.live_change: {error}", file=sys.stderr)
        return 1
    show("The whale's hard limit moves every second, under load, over HTTP", rows)
    write("live_change", rows, lines_of(found[0]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
