"""What the gateway adds to the engine's own gRPC: `python -m bench.gateway [--seconds 5] [--model FOLDER]`.

One machine, real processes: Postgres, Redis, web, controller, one worker; the default model is a tiny checkpoint, so
that the engine's time is small. Direct and HTTP requests alternate, with the same prompt, after a warm-up:

    direct   Submit on a Generate stream to the last event
    http     POST /v1/chat/completions on a kept connection to the last byte

The table has the medians, and what the gateway adds; every figure goes to bench/results/gateway.csv.
"""

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import structlog

from bench.report import Row, machine, show, write
from engine.protocol import pb
from gateway.workers.client import Dial, WorkerClient
from tests.engine.tiny_model import CHAT_TEMPLATE, make_tiny_model, make_tokenizer
from tests.gateway.wire.stack import Stack, running_stack
from tests.services import ENVIRONMENT, Services

MESSAGES = [{"role": "user", "content": "the tenant holds the block and the block holds the tokens"}]
WARM_UP = 50
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


async def throughput(request: Request, clients: int, seconds: float) -> float:
    """Return requests a second with `clients` at once."""
    ends = time.perf_counter() + seconds
    done = 0

    async def client() -> None:
        nonlocal done
        while time.perf_counter() < ends:
            await request()
            done += 1

    await asyncio.gather(*(client() for _ in range(clients)))
    return done / seconds


@asynccontextmanager
async def direct(stack: Stack, tenant_id: str) -> AsyncIterator[Callable[[int], Request]]:
    """Return what makes a request on the engine's own gRPC, by tokens of output."""

    async def no_card(_card: pb.ModelCard) -> None:
        return

    client = WorkerClient(Dial(address=stack.workers["bench"].address, token=stack.env["ENGINE_TOKEN"]), no_card)
    client.start()
    await client.connected.wait()
    import jinja2

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


@asynccontextmanager
async def over_http(stack: Stack, raw: str) -> AsyncIterator[Callable[[int, bool], Request]]:
    """Return what makes a request over HTTP, by tokens of output and whether it streams."""
    headers = {"authorization": f"Bearer {raw}", "content-type": "application/json"}
    async with httpx.AsyncClient(base_url=stack.url, headers=headers, timeout=60) as client:

        def of(num_tokens: int, stream: bool) -> Request:
            body = {"model": "bench", "messages": MESSAGES, "max_tokens": num_tokens, "temperature": 0}
            data = json.dumps(body | {"ignore_eos": True, "stream": stream}).encode()

            async def request() -> None:
                response = await client.post("/v1/chat/completions", content=data)
                assert response.status_code == 200, response.text

            return request

        yield of


async def run(stack: Stack, seconds: float) -> list[Row]:
    """Run every part and return the figures."""
    tenant = stack.tenant(max_running=512, max_queued=4096)
    rows: list[Row] = []
    async with direct(stack, tenant.id) as grpc_of, over_http(stack, tenant.key()) as http_of:
        for name, num_tokens, stream in (
            ("one token", 1, False),
            ("one token, streamed", 1, True),
            ("32 streamed", 32, True),
        ):
            engine, web = grpc_of(num_tokens), http_of(num_tokens, stream)
            await measure(engine, web, WARM_UP)
            own, all_of_it = await measure(engine, web, 200)
            direct_ms, http_ms = statistics.median(own), statistics.median(all_of_it)
            tail = statistics.quantiles(all_of_it, n=100)[98]
            note = f"{http_ms - direct_ms:.2f} ms added; 99th percentile {tail:.2f} ms"
            rows.append(Row(case=name, ours=http_ms, unit="ms", beside=direct_ms, note=note))
        for clients in (8, 32):
            engine_rate = await throughput(grpc_of(1), clients, seconds)
            web_rate = await throughput(http_of(1, False), clients, seconds)
            rows.append(Row(case=f"{clients} clients", ours=web_rate, unit="requests/s", beside=engine_rate))
    rows.append(Row(case="resident memory of web", ours=resident_bytes(stack.web.pid) / 1e6, unit="MB"))
    return rows


def resident_bytes(pid: int) -> int:
    """Return a process's resident memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """Start everything, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each throughput part")
    parser.add_argument("--model", type=Path, default=None, help="a model folder; default: a tiny checkpoint")
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    print(machine())
    services = Services()
    try:
        services.wait_ready()
        with tempfile.TemporaryDirectory(prefix="tollgate-bench-") as name:
            folder = Path(name)
            model = arguments.model or make_tiny_model(folder / "model")
            with running_stack(folder, {"bench": model}) as stack:
                rows = asyncio.run(run(stack, arguments.seconds))
    finally:
        services.stop()
    show("HTTP beside the engine's own gRPC", rows, beside="gRPC")
    write("gateway", rows)


if __name__ == "__main__":
    main()
