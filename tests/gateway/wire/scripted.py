"""A worker's Generate side that a test scripts, over a real socket, for what a real worker does too rarely."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from engine.protocol import pb, rpc
from tenants.contracts import WorkerView
from tests.engine.tiny_model import CHAT_TEMPLATE, make_tokenizer

TOKEN = "worker-token"


class ScriptedEngine(rpc.EngineServicer):
    """Keeps every command; says what the test tells it to say."""

    def __init__(self, address: str, worker_id: str = "w") -> None:
        self.address = address
        self.worker_id = worker_id
        self.model = "scripted"
        self.digest = "d" * 64
        self.tokenizer = make_tokenizer().to_str().encode()
        self.submits: list[pb.Submit] = []
        self.cancels: list[int] = []
        self.prefetches: list[pb.Prefetch] = []
        self.num_streams = 0
        self._call: Any = None
        self._closed = asyncio.Event()

    def view(self, **changes: Any) -> WorkerView:
        """Return it as the control plane lists it."""
        fields = {
            "worker_id": self.worker_id,
            "address": self.address,
            "model": self.model,
            "digest": self.digest,
            "kv_bytes": 1,
            "block_bytes": 1,
            "max_context": 2048,
            "last_seen_at": 0.0,
            "draining": False,
        }
        return WorkerView(**(fields | changes))

    async def Describe(self, request: pb.DescribeRequest, context: Any) -> pb.ModelCard:  # noqa: N802
        """Return the card."""
        assert ("authorization", f"Bearer {TOKEN}") in context.invocation_metadata()
        return pb.ModelCard(
            worker_id=self.worker_id,
            model=self.model,
            digest=self.digest,
            tokenizer_json=self.tokenizer,
            chat_template=CHAT_TEMPLATE,
            vocab_size=384,
            max_context_tokens=2048,
        )

    async def Generate(self, request_iterator: AsyncIterator[pb.Command], context: Any) -> None:  # noqa: N802
        """Take commands until the test breaks the stream."""
        self.num_streams += 1
        self._call, self._closed = context, asyncio.Event()
        reading = asyncio.create_task(self._read(request_iterator))
        await self._closed.wait()
        reading.cancel()
        await context.abort(grpc.StatusCode.UNAVAILABLE, "broken by the test")

    async def say(self, *events: pb.Event) -> None:
        """Send one step's message."""
        await self._call.write(pb.StepEvents(events=events))

    def break_stream(self) -> None:
        """End the Generate stream with an error."""
        self._closed.set()

    async def _read(self, commands: AsyncIterator[pb.Command]) -> None:
        async for command in commands:
            kind = command.WhichOneof("command")
            if kind == "submit":
                self.submits.append(command.submit)
            elif kind == "prefetch":
                self.prefetches.append(command.prefetch)
            else:
                self.cancels.append(command.cancel.stream)


@asynccontextmanager
async def serving(folder: Path, worker_id: str = "w") -> AsyncIterator[ScriptedEngine]:
    """Serve a scripted engine on a socket in `folder`."""
    engine = ScriptedEngine(f"unix:{folder / worker_id}.sock", worker_id)
    server = grpc.aio.server(options=[("grpc.http2.min_ping_interval_without_data_ms", 5_000)])
    rpc.add_EngineServicer_to_server(engine, server)  # type: ignore[no-untyped-call]
    server.add_insecure_port(engine.address)
    await server.start()
    try:
        yield engine
    finally:
        engine.break_stream()
        await server.stop(0)


async def until(done: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Wait until `done` is true and return its value."""
    deadline = time.monotonic() + seconds
    while not (value := done()):
        assert time.monotonic() < deadline, f"waited {seconds} s in vain"
        await asyncio.sleep(0.002)
    return value


def admitted(stream: int, most: int = 10) -> pb.Event:
    """Return an `admitted` event."""
    return pb.Event(stream=stream, admitted=pb.Admitted(max_tokens=most))


def delta(stream: int, text: str, num_tokens: int = 1, index: int = 0) -> pb.Event:
    """Return a `delta` event."""
    return pb.Event(stream=stream, index=index, delta=pb.Delta(token_ids=[1] * num_tokens, text=text))


def output_finished(stream: int, index: int, text: str = "", reason: int = pb.FINISH_REASON_STOP) -> pb.Event:
    """Return an `output_finished` event."""
    end = pb.OutputFinished(reason=reason, text=text)  # type: ignore[arg-type]
    return pb.Event(stream=stream, index=index, output_finished=end)


def finished(stream: int, reason: int = pb.FINISH_REASON_STOP, text: str = "") -> pb.Event:
    """Return a `finished` event."""
    usage = pb.Usage(prompt_tokens=3, completion_tokens=2)
    return pb.Event(stream=stream, finished=pb.Finished(reason=reason, text=text, usage=usage))  # type: ignore[arg-type]


def refused(stream: int, code: int, field: str = "") -> pb.Event:
    """Return a `refused` event."""
    return pb.Event(stream=stream, refused=pb.Refused(code=code, message="no", field=field))  # type: ignore[arg-type]
