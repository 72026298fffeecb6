"""The one client of every server: `POST /v1/completions` over a connection of its own, read with as little as possible.

    answers = asyncio.run(complete_all(endpoint, prompts, max_tokens=128))

It runs on the cores of the server, so it parses nothing while tokens come: bytes are kept, and read when all is over.
"""

import asyncio
import json
import re
import time
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any
from urllib.parse import urlsplit

from bench.peers.environment import PeerError

SECONDS = 300.0  # for one request


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where to ask, as whom, for what."""

    base_url: str  # up to /v1
    model: str
    key: str = ""
    extra: Mapping[str, object] = field(default_factory=dict)  # fields that its requests need beside the common ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One completion; times by `time.perf_counter`."""

    began: float
    first: float  # the first bytes of the body
    ended: float
    num_tokens: int  # generated
    prompt_tokens: int  # 0: the server does not say
    text_times: tuple[float, ...] = ()  # when each piece of text came; pieces that came together have the same


def seconds_of(answers: Sequence[Answer]) -> float:
    """Return the time from the first request to the end of the last answer."""
    return max(answer.ended for answer in answers) - min(answer.began for answer in answers)


async def complete_all(endpoint: Endpoint, prompts: Sequence[str], *, max_tokens: int) -> list[Answer]:
    """Ask for all at once, greedily, streaming, exactly `max_tokens` each.

    Raises:
        PeerError: a request was refused, or an answer was shorter.
        OSError: nobody listens there.
    """
    return list(await asyncio.gather(*(complete(endpoint, prompt, max_tokens=max_tokens) for prompt in prompts)))


async def complete(endpoint: Endpoint, prompt: str, *, max_tokens: int) -> Answer:
    """Ask for one completion, see `complete_all`."""
    address = urlsplit(endpoint.base_url)
    request = _request(endpoint, address.netloc, address.path, prompt, max_tokens)
    began = time.perf_counter()
    async with asyncio.timeout(SECONDS):
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        try:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            body, reads = bytearray(), list[tuple[int, float]]()
            while piece := await reader.read(1 << 16):
                reads.append((len(body), time.perf_counter()))
                body += piece
            ended = time.perf_counter()
        finally:
            writer.close()
    status = int(head.split(b" ", 2)[1])
    content = _dechunked(bytes(body)) if b"transfer-encoding: chunked" in head.lower() else bytes(body)
    if status != 200:
        raise PeerError(f"{endpoint.base_url} answered {status}: {content.decode(errors='replace')[:500]}")
    num_tokens, prompt_tokens = _count(content, max_tokens)
    return Answer(
        began=began,
        first=reads[0][1],
        ended=ended,
        num_tokens=num_tokens,
        prompt_tokens=prompt_tokens,
        text_times=tuple(text_times_of(bytes(body), content, reads)),
    )


def _request(endpoint: Endpoint, host: str, path: str, prompt: str, max_tokens: int) -> bytes:
    body = {
        "model": endpoint.model,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        **endpoint.extra,
    }
    content = json.dumps(body).encode()
    head = [
        f"POST {path}/completions HTTP/1.1",
        f"host: {host}",
        f"authorization: Bearer {endpoint.key or 'none'}",
        "content-type: application/json",
        f"content-length: {len(content)}",
        "connection: close",
    ]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + content


def _dechunked(body: bytes) -> bytes:
    """Return the content of a chunked body."""
    out, at = bytearray(), 0
    while at < len(body):
        line_end = body.index(b"\r\n", at)
        size = int(body[at:line_end].split(b";")[0], 16)
        out += body[line_end + 2 : line_end + 2 + size]
        at = line_end + 2 + size + 2
    return bytes(out)


def _count(content: bytes, max_tokens: int) -> tuple[int, int]:
    """Return generated and prompt tokens. Raises PeerError when the answer is not of `max_tokens`."""
    usage: dict[str, Any] = {}
    reason = ""
    for event in _events(content):
        if "error" in event:
            raise PeerError(f"the stream ended with {event['error']}")
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            reason = choice.get("finish_reason") or reason
    num_tokens = int(usage.get("completion_tokens", max_tokens))
    if reason != "length" or num_tokens != max_tokens:
        raise PeerError(f"asked for {max_tokens} tokens, got {num_tokens}, finish_reason {reason!r}")
    return num_tokens, int(usage.get("prompt_tokens", 0))


def text_times_of(body: bytes, content: bytes, reads: Sequence[tuple[int, float]]) -> Iterator[float]:
    """Yield when each event with text in it came: `reads` has the offset of every piece of the body, and its time."""
    marks = (found.start() for found in re.finditer(rb"data: \{", body))  # chunked or not, in the order of the events
    for event, mark in zip(_events(content), marks, strict=True):
        if any(choice.get("text") for choice in event["choices"]):
            yield reads[bisect_right(reads, mark, key=itemgetter(0)) - 1][1]


def _events(content: bytes) -> Iterator[dict[str, Any]]:
    for line in content.decode().splitlines():
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line.removeprefix("data: "))
