"""What open websockets cost one web process: `python -m bench.websockets [--sockets 2000]`.

One machine, real processes, a stub engine (bench/stub_engine.py), so that the figures are the gateway's:

    memory       resident set of the web process, before, with all sockets open, and after a response on each
    time         to open them, and for one response of 16 tokens on every socket
    slow reader  a response of 1,000 tokens, alone and beside readers that have stopped reading; alternating, minima

Every figure goes to bench/results/websockets.csv.
"""

import argparse
import asyncio
import json
import resource
import socket
import time
from collections.abc import Sequence
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from bench.gateway import resident_bytes
from bench.report import Row, show, write
from bench.stack import own_stack
from tests.gateway.wire.stack import Stack

AT_ONCE = 100  # handshakes, and responses, under way
NUM_SLOW = 20
TOKENS, LONG_TOKENS = 16, 1000
REPEATS = 5
MOST_BYTES = 1e9


async def dial(stack: Stack, raw: str, **options: Any) -> ClientConnection:
    """Open a socket and take its `session.created`."""
    connection = await connect(
        f"ws://127.0.0.1:{stack.port}/v1/realtime?model=bench",
        additional_headers={"authorization": f"Bearer {raw}"},
        compression=None,
        ping_interval=None,
        open_timeout=60,
        proxy=None,
        **options,
    )
    assert json.loads(await connection.recv())["type"] == "session.created"
    return connection


async def ask(connection: ClientConnection, num_tokens: int) -> None:
    """Ask for a response without reading it."""
    response = {"input": "hello", "max_output_tokens": num_tokens, "temperature": 0, "ignore_eos": True}
    await connection.send(json.dumps({"type": "response.create", "response": response}))


async def respond(connection: ClientConnection, num_tokens: int) -> None:
    """Ask for a response and read it to its end."""
    await ask(connection, num_tokens)
    while '"response.done"' not in str(await connection.recv())[:40]:
        pass


async def spread(calls: Sequence[Any]) -> list[Any]:
    """Await all calls, AT_ONCE of them under way."""
    turn = asyncio.Semaphore(AT_ONCE)

    async def one(call: Any) -> Any:
        async with turn:
            return await call

    return list(await asyncio.gather(*map(one, calls)))


async def many(stack: Stack, raw: str, count: int) -> list[Row]:
    """Return what `count` open sockets cost."""
    await asyncio.gather(*[connection.close() for connection in await spread([dial(stack, raw) for _ in range(20)])])
    before = resident_bytes(stack.web.pid)
    began = time.perf_counter()
    connections = await spread([dial(stack, raw) for _ in range(count)])
    opened, idle = time.perf_counter() - began, resident_bytes(stack.web.pid)
    began = time.perf_counter()
    await spread([respond(connection, TOKENS) for connection in connections])
    answered, used = time.perf_counter() - began, resident_bytes(stack.web.pid)
    await spread([connection.close() for connection in connections])
    each = f"{(idle - before) / count / 1e3:.0f} KB a socket"
    return [
        Row(case="memory before", ours=before / 1e6, unit="MB"),
        Row(case=f"memory with {count} open", ours=idle / 1e6, unit="MB", note=each),
        Row(
            case="memory after a response on each",
            ours=used / 1e6,
            unit="MB",
            target=MOST_BYTES / 1e6,
            at_least=False,
        ),
        Row(case=f"{count} handshakes", ours=opened, unit="s", note=f"{count / opened:.0f} a second"),
        Row(case=f"{count} responses of {TOKENS} tokens", ours=answered, unit="s", note=f"{count / answered:.0f}/s"),
    ]


def narrow() -> socket.socket:
    """Return a connection's socket for which the kernel keeps little here."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    return made


async def stopped(stack: Stack, raw: str) -> list[ClientConnection]:
    """Return readers that have asked for much and stopped reading."""
    connections = []
    for _ in range(NUM_SLOW):
        made = narrow()
        made.connect(("127.0.0.1", stack.port))
        made.setblocking(False)
        connection = await dial(stack, raw, sock=made, max_queue=1)
        connection.transport.pause_reading()
        await ask(connection, 8000)
        connections.append(connection)
    return connections


async def slow_readers(stack: Stack, raw: str) -> list[Row]:
    """Return the time of a response alone, and beside readers that have stopped; the engine's own share is in both."""
    quick = await dial(stack, raw)
    alone, beside = [], []
    for _ in range(REPEATS):
        began = time.perf_counter()
        await respond(quick, LONG_TOKENS)
        alone.append(time.perf_counter() - began)
        slow = await stopped(stack, raw)
        await asyncio.sleep(3.0)  # their buffers are full
        began = time.perf_counter()
        await respond(quick, LONG_TOKENS)
        beside.append(time.perf_counter() - began)
        for connection in slow:
            connection.transport.abort()
        await asyncio.sleep(0.5)
    await quick.close()
    note = f"beside {NUM_SLOW} readers that have stopped; next to it: alone"
    row = Row(
        case=f"a response of {LONG_TOKENS} tokens",
        ours=min(beside) * 1000,
        unit="ms",
        beside=min(alone) * 1000,
        target=1.5,
        at_least=False,
        note=note,
    )
    return [row]


async def run(stack: Stack, count: int) -> list[Row]:
    """Run every part and return the figures."""
    raw = stack.tenant(max_running=512, max_queued=8192, max_output=8192).key()
    return await many(stack, raw, count) + await slow_readers(stack, raw)


def main() -> None:
    """Start everything, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--sockets", type=int, default=2000)
    arguments = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with own_stack("bench", engine="bench.stub_engine") as stack:
        rows = asyncio.run(run(stack, arguments.sockets))
    show("Websockets", rows, beside="alone")
    write("websockets", rows)


if __name__ == "__main__":
    main()
