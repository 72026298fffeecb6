"""How fast a change of limits is in force on every worker: `python -m bench.push [--seconds 15] [--tenants 200]`.

One machine, real processes: Postgres, Redis, web, controller, and two workers with a tiny model each. Operators change
random limits of random tenants over the management API, as fast as they are answered, while clients generate on both
workers. A change takes from its commit until the slower worker's step enforces it, as `policy-versions/…/acks/` tells.

The table has the median, the 99th percentile (DESIGN: under a second) and the slowest of all changes, first without and
then under load, and what the changes cost the clients; every figure goes to bench/results/push.csv.
"""

import argparse
import asyncio
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from bench.report import Row, show, write
from bench.stack import own_stack
from tests.gateway.wire.stack import Stack, TenantInTest

MODELS = ("left", "right")
OPERATORS = 4
CLIENTS = 4  # on each worker
MESSAGES = [{"role": "user", "content": "the tenant holds the block and the block holds the tokens"}]
TARGET_MS = 1000.0
MIB = 1 << 20

CHANGES: tuple[Callable[[random.Random], dict[str, Any]], ...] = (
    lambda draw: {"kv_hard_bytes": draw.randint(4, 8) * MIB},
    lambda draw: {"weight": draw.choice([0.5, 1, 2, 4])},
    lambda draw: {"max_running": draw.randint(8, 64), "max_queued": draw.randint(64, 512)},
    lambda draw: {"priority": draw.choice(["interactive", "standard", "batch"])},
    lambda draw: {"host_bytes": draw.randint(0, 64) * MIB, "shadow": {"max_running": draw.randint(1, 8)}},
)


@dataclass(slots=True)
class Traffic:
    """What clients saw."""

    latencies: list[float] = field(default_factory=list)  # milliseconds
    errors: list[str] = field(default_factory=list)


async def change_often(stack: Stack, key: str, tenants: list[TenantInTest], until: float, seed: int) -> list[int]:
    """Change random limits one after the other; return the versions that were made."""
    draw, versions = random.Random(seed), []
    async with httpx.AsyncClient(base_url=f"{stack.url}/api/v1", headers={"authorization": f"Bearer {key}"}) as api:
        while time.monotonic() < until:
            path = f"/tenants/{draw.choice(tenants).slug}/policy/"
            etag = (await api.get(path)).headers["etag"]
            answer = await api.patch(path, json=draw.choice(CHANGES)(draw), headers={"If-Match": etag})
            if answer.status_code == 200:
                versions.append(int(answer.json()["version"]))
            else:
                assert answer.status_code == 412, answer.text  # another operator was quicker
    return versions


async def generate_often(stack: Stack, key: str, model: str, until: float, seen: Traffic) -> None:
    """Stream short answers one after the other."""
    body = {"model": model, "messages": MESSAGES, "max_tokens": 16, "ignore_eos": True, "stream": True}
    async with httpx.AsyncClient(base_url=stack.url, headers={"authorization": f"Bearer {key}"}, timeout=60) as client:
        while time.monotonic() < until:
            began = time.perf_counter()
            answer = await client.post("/v1/chat/completions", json=body)
            if answer.status_code == 200 and '"error"' not in answer.text:
                seen.latencies.append((time.perf_counter() - began) * 1000)
            else:
                seen.errors.append(answer.text[:200])


async def applied_ms(stack: Stack, key: str, versions: list[int]) -> list[float]:
    """Return how long each version took until both workers enforced it."""
    times: list[float] = []
    async with httpx.AsyncClient(base_url=f"{stack.url}/api/v1", headers={"authorization": f"Bearer {key}"}) as api:
        for version in versions:
            ends = time.monotonic() + 30
            while (ms := (await api.get(f"/policy-versions/{version}/acks/")).json()["ms"]) is None:
                assert time.monotonic() < ends, f"version {version} was not applied everywhere"
                await asyncio.sleep(0.05)
            times.append(ms)
    return times


async def part(stack: Stack, tenants: list[TenantInTest], *, key: str, seconds: float, clients: int) -> list[Row]:
    """Measure changes while so many clients generate on each worker."""
    seen, until = Traffic(), time.monotonic() + seconds
    keys = [tenant.key() for tenant in tenants[:clients]]
    traffic = [generate_often(stack, raw, model, until, seen) for raw in keys for model in MODELS]
    operators = [change_often(stack, key, tenants, until, number) for number in range(OPERATORS)]
    everybody = asyncio.gather(*traffic)
    versions = [version for made in await asyncio.gather(*operators) for version in made]
    await everybody
    times = await applied_ms(stack, key, sorted(versions))
    p99 = statistics.quantiles(times, n=100, method="inclusive")[98]
    load = f"{clients * len(MODELS)} clients" if clients else "no clients"
    note = f"{len(versions)} changes, {len(versions) / seconds:.0f} a second"
    rows = [
        Row(case=f"{load}, median", ours=statistics.median(times), unit="ms", note=note),
        Row(case=f"{load}, 99th percentile", ours=p99, unit="ms", target=TARGET_MS, at_least=False),
        Row(case=f"{load}, slowest", ours=max(times), unit="ms"),
    ]
    if clients:
        note = f"{len(seen.latencies)} requests; {seen.errors[0]}" if seen.errors else f"{len(seen.latencies)} requests"
        rows.append(
            Row(case=f"{load}, failed requests", ours=len(seen.errors), unit="", target=0.0, at_least=False, note=note)
        )
    return rows


async def run(stack: Stack, seconds: float, num_tenants: int) -> list[Row]:
    """Run both parts."""
    key = str(stack.seed(do="operator")["secret"])
    tenants = [stack.tenant(kv_hard_bytes=8 * MIB, max_running=64, max_queued=512) for _ in range(num_tenants)]
    rows = await part(stack, tenants, key=key, seconds=seconds / 2, clients=0)
    return rows + await part(stack, tenants, key=key, seconds=seconds, clients=CLIENTS)


def main() -> None:
    """Start everything, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=15.0, help="under load; half of it without")
    parser.add_argument("--tenants", type=int, default=200)
    arguments = parser.parse_args()
    with own_stack(*MODELS) as stack:
        rows = asyncio.run(run(stack, arguments.seconds, arguments.tenants))
    show("A change of limits, in force on two workers", rows)
    write("push", rows)


if __name__ == "__main__":
    main()
