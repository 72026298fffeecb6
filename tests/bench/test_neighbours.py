"""What the noisy neighbours' bench counts: when text came, what a whale got within a window, what the table says."""

import asyncio
import json

import pytest

from bench.neighbours import Watched, Whale, Words, percentile, watch
from bench.noisy import rows_of
from bench.peers.client import Answer, Endpoint, text_times_of

NUM_TOKENS = 24


def event(**content: object) -> bytes:
    """Return one event of a stream."""
    return b"data: " + json.dumps(content).encode() + b"\n\n"


def texts(*pieces: str) -> list[bytes]:
    """Return events with these texts, then the last one with the usage."""
    told = [event(choices=[{"text": piece, "finish_reason": None}]) for piece in pieces]
    end = event(choices=[{"text": "", "finish_reason": "length"}])
    usage = event(choices=[], usage={"completion_tokens": len(pieces), "prompt_tokens": 30})
    return [*told, end, usage, b"data: [DONE]\n\n"]


def test_each_text_has_the_time_of_the_read_that_it_came_with() -> None:
    """Events in one read share its time; what has no text has none; framing between the events changes nothing."""
    events = texts("a", "b", "c")
    frames = [f"{len(one):x}\r\n".encode() + one + b"\r\n" for one in events]
    body, content = b"".join(frames), b"".join(events)
    starts = [sum(map(len, frames[:index])) for index in range(len(frames))]
    reads = [(0, 1.0), (starts[2], 2.0), (starts[3], 3.0)]  # a and b, then c, then the rest
    assert list(text_times_of(body, content, reads)) == [1.0, 1.0, 2.0]


def test_a_whales_request_at_the_edge_counts_by_its_time_within() -> None:
    """Half of a request before the window, and half of its tokens; all of what lies within."""
    whale = Whale(Endpoint(base_url="http://localhost/v1", model="m"), Words(1))
    whale.answers += [
        Answer(began=began, first=began, ended=ended, num_tokens=10, prompt_tokens=90)
        for began, ended in ((8.0, 12.0), (12.0, 16.0), (16.0, 26.0), (30.0, 31.0))
    ]
    assert whale.tokens(10.0, 21.0) == pytest.approx(50 + 100 + 50)


def test_percentiles_are_values_that_were_measured() -> None:
    """The 99th of a hundred values is the largest but one, or the largest; never something in between."""
    values = [float(value) for value in range(100)]
    assert percentile(values, 0.5) == 50.0
    assert percentile(values[::-1], 0.99) == 99.0
    assert percentile([3.0], 0.99) == 3.0


def test_a_minnow_and_whales_are_watched_over_http() -> None:
    """Every request of the minnow is there with its text, and the whales have swum as long as it."""
    asked: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        request = json.loads(await reader.readexactly(length))
        asked.append(request["prompt"])
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
        writer.writelines(texts(*["word"] * request["max_tokens"]))
        await writer.drain()
        writer.close()

    async def run() -> Watched:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            endpoint = Endpoint(base_url=f"http://127.0.0.1:{port}/v1", model="m")
            return await watch(endpoint, Words(1), samples=2, whales=endpoint, num_whales=2)

    watched = asyncio.run(run())
    assert len(watched.first_text) == 2
    assert min(watched.first_text) > 0
    assert len(watched.gaps) == 2 * (NUM_TOKENS - 1)
    assert watched.whale_tokens_per_second > 0
    assert len(set(asked)) == len(asked) > 4


def test_the_table_judges_ratios_of_ours_alone() -> None:
    """The targets are for the minnow's tails by its own alone, and for the whales by first come, first served."""

    def seen(first: float, gap: float, rate: float) -> list[Watched]:
        return [Watched(first_text=(first,) * 10, gaps=(gap,) * 10, whale_tokens_per_second=rate)]

    ours = {"alone": seen(0.02, 0.01, 0.0), "whales": seen(0.1, 0.03, 800.0), "fcfs": seen(2.0, 0.2, 900.0)}
    theirs = {"alone": seen(0.05, 0.02, 0.0), "whales": seen(5.0, 1.0, 700.0)}
    verdicts = {row.case: row.verdict for row in rows_of(ours, theirs) if row.target is not None}
    assert verdicts == {
        "minnow, first token, p99, whales ÷ alone": "missed",  # five times
        "minnow, between tokens, p99, whales ÷ alone": "met",  # three times
        "whales ÷ fcfs": "met",
    }
