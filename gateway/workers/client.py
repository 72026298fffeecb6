"""The engine client: one connection to one worker, one Generate stream for all requests of this process.

    submit ──▶ outbox ──▶ Generate stream ──▶ worker
    Generation ◀── demultiplexer ◀── one StepEvents a step ◀──┘

A broken stream ends every request on it with an error, and the connection is made again with back-off.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import structlog

from engine.protocol import pb, rpc
from gateway.workers.errors import GenerationFailed, WorkerUnavailable
from gateway.workers.generation import Generation, tells_at_the_end

MAX_OUTBOX = 10_000  # commands waiting to be sent; more means that the worker has stopped reading
DESCRIBE_SECONDS = 10.0
FIRST_BACKOFF = 0.05
LAST_BACKOFF = 2.0
_OPTIONS = [
    ("grpc.max_receive_message_length", 128 << 20),  # a tokenizer.json has tens of MB
    ("grpc.use_local_subchannel_pool", 1),  # a new try is a new dial, not the last one's back-off
    ("grpc.enable_http_proxy", 0),
    ("grpc.keepalive_time_ms", 10_000),  # a worker that vanished without a word is found out
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
]

_log = structlog.get_logger("gateway.workers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dial:
    """How to reach a worker: its address, and what every call to any worker needs."""

    address: str  # `unix:/path` or `host:port`
    token: str  # bearer token
    ca_file: str = ""  # PEM; empty: plain text


class WorkerClient:
    """A connection that lives as long as its worker is listed.

    Args:
        dial: where and with what token.
        on_card: awaited with each Describe, before the worker counts as connected; the model may have changed.
    """

    def __init__(self, dial: Dial, on_card: Callable[[pb.ModelCard], Awaitable[None]]) -> None:
        self.dial = dial
        self._on_card = on_card
        self._active: dict[int, Generation] = {}
        self._outbox: asyncio.Queue[pb.Command] = asyncio.Queue()
        self._last_stream = 0
        self._task: asyncio.Task[None] | None = None
        self.connected = asyncio.Event()
        self.lags_until = 0.0  # monotonic: until then this worker isn't asked to wait for a policy version

    @property
    def num_active(self) -> int:
        """Requests of this process on the worker."""
        return len(self._active)

    def start(self) -> None:
        """Begin to connect; goes on until `stop`."""
        self._task = asyncio.create_task(self._run(), name=f"worker {self.dial.address}")

    async def stop(self) -> None:
        """Close the connection; what still runs on it ends with an error."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def submit(self, submit: pb.Submit, on_tokens: Callable[[int], None] | None = None) -> Generation:
        """Send a request; `submit.stream` is chosen here.

        Args:
            submit: the request.
            on_tokens: told of its tokens as they come, how many at once.

        Raises:
            WorkerUnavailable: there is no connection, or the worker doesn't read.
        """
        if not self.connected.is_set():
            raise WorkerUnavailable("The model's worker can't be reached just now")
        if self._outbox.qsize() >= MAX_OUTBOX:
            raise WorkerUnavailable("The model's worker doesn't keep up")
        self._last_stream += 1
        stream = submit.stream = self._last_stream
        generation = Generation(
            lambda: self._cancel(stream), submit.n or 1, whole=tells_at_the_end(submit), on_tokens=on_tokens
        )
        self._active[stream] = generation
        self._outbox.put_nowait(pb.Command(submit=submit))
        return generation

    def prefetch(self, tenant: str, session: str) -> None:
        """Let the worker bring a session's KV up ahead of its next turn. Nothing comes back; a busy one isn't told."""
        if self.connected.is_set() and self._outbox.qsize() < MAX_OUTBOX:
            self._outbox.put_nowait(pb.Command(prefetch=pb.Prefetch(tenant=tenant, session=session)))

    def _cancel(self, stream: int) -> None:
        if self._active.pop(stream, None) is not None:
            self._outbox.put_nowait(pb.Command(cancel=pb.Cancel(stream=stream)))

    async def _run(self) -> None:
        backoff = FIRST_BACKOFF
        try:
            while True:
                reason = await self._serve_until_broken()
                if self.connected.is_set():
                    backoff = FIRST_BACKOFF
                    _log.warning("worker_lost", address=self.dial.address, reason=reason)
                self._break(f"the connection to its worker broke ({reason})")
                await asyncio.sleep(backoff)
                backoff = min(backoff * 2, LAST_BACKOFF)
        finally:
            self._break("this process closed the connection to its worker")

    async def _serve_until_broken(self) -> str:
        """Connect and serve; return what ended it."""
        try:
            async with self._open() as stub:
                await self._serve(stub)
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name}: {error.details()}"
        except (ValueError, OSError) as error:  # a card or a certificate that can't be read
            _log.error("worker_unusable", address=self.dial.address, reason=str(error))
            return str(error)
        return "the worker closed the stream"

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[Any]:
        if self.dial.ca_file:
            roots = await asyncio.to_thread(Path(self.dial.ca_file).read_bytes)
            channel = grpc.aio.secure_channel(self.dial.address, grpc.ssl_channel_credentials(roots), options=_OPTIONS)
        else:
            channel = grpc.aio.insecure_channel(self.dial.address, options=_OPTIONS)
        try:
            yield rpc.EngineStub(channel)  # type: ignore[no-untyped-call]  # generated code
        finally:
            await channel.close(None)

    async def _serve(self, stub: Any) -> None:
        """Describe, then carry commands and events until the stream ends."""
        metadata = (("authorization", f"Bearer {self.dial.token}"),)
        card = await stub.Describe(pb.DescribeRequest(), metadata=metadata, timeout=DESCRIBE_SECONDS)
        await self._on_card(card)
        call = stub.Generate(metadata=metadata)
        self._outbox = asyncio.Queue()
        writer = asyncio.create_task(self._write(call))
        try:
            self.connected.set()
            _log.info("worker_connected", address=self.dial.address, worker=card.worker_id, model=card.model)
            async for step in call:
                self._demultiplex(step)
        finally:
            call.cancel()
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)

    async def _write(self, call: Any) -> None:
        outbox = self._outbox
        try:
            while True:
                await call.write(await outbox.get())
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return  # the call has ended: the reader sees it too, and says why

    def _demultiplex(self, step: pb.StepEvents) -> None:
        for event in step.events:
            generation = self._active.get(event.stream)
            if generation is None:
                continue  # cancelled here, and the worker did not know yet
            generation.take(event)
            if generation.over:
                self._active.pop(event.stream, None)

    def _break(self, reason: str) -> None:
        self.connected.clear()
        active, self._active = self._active, {}
        for generation in active.values():
            generation.over = True
            generation.fail(GenerationFailed(reason))
