"""What the gateway adds to a worker, and how much one web process carries: `python -m bench.gateway [--seconds 8]`.

One machine, real processes: Postgres, Redis, controller, one web process with keys, limits and metering on; the worker
is `bench.stub_engine`, so that next to nothing of a request's time is the engine's. The client writes and reads bytes
on kept connections and parses nothing, since it has the same cores.

    direct   Submit on a Generate stream to the last event
    http     POST /v1/chat/completions to the last byte, the same prompt

At one client the two alternate, and the gateway adds the difference of their medians. Rates are of as many requests at
once as `--clients`; beside them stands what the same client gets of the worker without a gateway. `cpu` is what the web
process itself used for a request.
"""

import argparse
import asyncio
import json
import os
import statistics
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import jinja2

from bench.http import Connection
from bench.report import Row, show, write
from bench.stack import own_stack
from engine.protocol import pb
from gateway.workers.client import Dial, WorkerClient
from tests.engine.tiny_model import CHAT_TEMPLATE, make_tokenizer
from tests.gateway.wire.stack import Stack

MESSAGES = [{"role": "user", "content": "the tenant holds the block and the block holds the tokens"}]
WARM_UP = 50
PAIRS = 400
STREAM_TOKENS = 16
MOST_ADDED_MS = 2.0
LEAST_REQUESTS, LEAST_STREAMS = 700.0, 400.0  # a second, of one web process
Request = Callable[[], Awaitable[None]]


async def measure(request: Request, other: Request, count: int) -> tuple[list[float], list[float]]:
    """Return milliseconds of `count` calls of each, alternating."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(count):
        for index, call in enumerate((request, other)):
            began = time.perf_counter()
            await call()
            times[index].append((time.perf_counter() - began) * 1000)
    return times


async def throughput(requests: list[Request], seconds: float) -> tuple[float, int]:
    """Return requests a second with one client each for `requests`, and how many there were."""
    began = time.perf_counter()
    ends = began + seconds
    done = 0

    async def client(request: Request) -> None:
        nonlocal done
        while time.perf_counter() < ends:
            await request()
            done += 1

    await asyncio.gather(*map(client, requests))
    return done / (time.perf_counter() - began), done


@asynccontextmanager
async def direct(stack: Stack, tenant_id: str) -> AsyncIterator[Callable[[int], Request]]:
    """Return what makes a request on the engine's own gRPC, by tokens of output."""

    async def no_card(_card: pb.ModelCard) -> None:
        return

    client = WorkerClient(Dial(address=stack.workers["bench"].address, token=stack.env["ENGINE_TOKEN"]), no_card)
    client.start()
    await client.connected.wait()
    text = jinja2.Template(CHAT_TEMPLATE).render(messages=MESSAGES, add_generation_prompt=True)
    tokens = make_tokenizer().encode(text).ids

    def of(num_tokens: int) -> Request:
        async def request() -> None:
            submit = pb.Submit(
                request_id=uuid.uuid4().hex,
                tenant=tenant_id,
                namespace=b"n" * 32,
                token_ids=tokens,
                sampling=pb.Sampling(max_tokens=num_tokens, top_p=1.0, ignore_eos=True),
            )
            async with client.submit(submit) as generation:
                async for _ in generation:
                    pass

        return request

    yield of
    await client.stop()


def over_http(stack: Stack, raw: str, num_tokens: int, *, stream: bool) -> Request:
    """Return what makes a request over HTTP, on a connection of its own."""
    body = {"model": "bench", "messages": MESSAGES, "max_tokens": num_tokens, "temperature": 0, "stream": stream}
    parts = urlsplit(stack.url)
    assert parts.hostname is not None and parts.port is not None
    connection = Connection(parts.hostname, parts.port, "/v1/chat/completions", raw, json.dumps(body).encode())

    async def request() -> None:
        status = await connection.ask()
        if status != 200:
            raise RuntimeError(f"the gateway answered {status}")

    return request


async def added(stack: Stack, raw: str, grpc_of: Callable[[int], Request]) -> list[Row]:
    """Return what HTTP adds for one client."""
    rows = []
    for name, num_tokens, stream in (("one token", 1, False), ("16 tokens, streamed", STREAM_TOKENS, True)):
        engine, web = grpc_of(num_tokens), over_http(stack, raw, num_tokens, stream=stream)
        await measure(engine, web, WARM_UP)
        own, all_of_it = await measure(engine, web, PAIRS)
        direct_ms, http_ms = statistics.median(own), statistics.median(all_of_it)
        tail = statistics.quantiles(all_of_it, n=100)[98]
        rows.append(Row(case=name, ours=http_ms, unit="ms", beside=direct_ms, note=f"99th percentile {tail:.2f} ms"))
        rows.append(
            Row(case=f"{name}: added", ours=http_ms - direct_ms, unit="ms", target=MOST_ADDED_MS, at_least=False)
        )
    return rows


async def rates(stack: Stack, raw: str, grpc_of: Callable[[int], Request], clients: int, seconds: float) -> list[Row]:
    """Return how many requests and streams a second one web process carries."""
    rows = []
    for name, num_tokens, stream, least in (
        ("requests, one token", 1, False, LEAST_REQUESTS),
        (f"streams of {STREAM_TOKENS} tokens", STREAM_TOKENS, True, LEAST_STREAMS),
    ):
        web = [over_http(stack, raw, num_tokens, stream=stream) for _ in range(clients)]
        await throughput(web, 1.0)
        engine_rate, _ = await throughput([grpc_of(num_tokens)] * clients, seconds)
        before = cpu_seconds(stack.web.pid)
        web_rate, count = await throughput(web, seconds)
        cost = (cpu_seconds(stack.web.pid) - before) / count * 1000
        note = (
            f"{clients} at once; web's cpu {cost:.2f} ms each: {1000 / cost:.0f}/s of a core; gRPC {engine_rate:.0f}/s"
        )
        rows.append(Row(case=name, ours=web_rate, unit="/s", target=least, note=note))
    return rows


async def run(stack: Stack, clients: int, seconds: float) -> list[Row]:
    """Run every part and return the figures."""
    tenant = stack.tenant(max_running=512, max_queued=4096)
    raw = tenant.key()
    async with direct(stack, tenant.id) as grpc_of:
        rows = await added(stack, raw, grpc_of)
        rows += await rates(stack, raw, grpc_of, clients, seconds)
    await asyncio.sleep(1.0)  # the last batch of usage
    rows.append(Row(case="usage records kept", ours=len(tenant.usage()), unit="records"))
    rows.append(Row(case="resident memory of web", ours=resident_bytes(stack.web.pid) / 1e6, unit="MB"))
    return rows


def resident_bytes(pid: int) -> int:
    """Return a process's resident memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(pid: int) -> float:
    """Return the seconds of a core that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Start everything, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each rate")
    parser.add_argument("--clients", type=int, default=32, help="requests at once")
    arguments = parser.parse_args()
    with own_stack("bench", engine="bench.stub_engine") as stack:
        rows = asyncio.run(run(stack, arguments.clients, arguments.seconds))
    show("The gateway before a worker without a model", rows, beside="gRPC")
    write("gateway", rows)


if __name__ == "__main__":
    main()
