"""One Control stream to one worker: dial, authenticate, read its Hello, then events up and commands down."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from engine.protocol import engine_pb2 as pb
from engine.protocol.engine_pb2_grpc import EngineStub
from gateway.workers.client import Dial

DESCRIBE_SECONDS = 15.0
HELLO_SECONDS = 15.0  # how long a worker may take to greet: it waits up to 10 s for a core that is starting
_OPTIONS = [
    ("grpc.max_receive_message_length", 128 << 20),  # a tokenizer.json has tens of MB
    ("grpc.max_send_message_length", 64 << 20),  # what a worker takes: a group may have megabytes of token ids
    ("grpc.use_local_subchannel_pool", 1),  # a new try is a new dial, not the last one's back-off
    ("grpc.enable_http_proxy", 0),
    ("grpc.keepalive_time_ms", 10_000),  # a worker that stopped without closing its socket is noticed in 15 s
    ("grpc.keepalive_timeout_ms", 5_000),
]

Command = pb.ControlCommand | Callable[[], pb.ControlCommand]


class ControlError(Exception):
    """The worker cannot be reached, refused the stream, or broke the protocol; the message says which."""


class ControlStream:
    """An open stream whose worker has greeted. Made by `open_control`."""

    def __init__(self, stub: Any, token: str) -> None:
        self.hello = pb.Hello()
        self._stub = stub
        self._metadata = (("authorization", f"Bearer {token}"),)
        self._call = stub.Control(metadata=self._metadata)
        self._events = aiter(self._call)  # one iterator for all: grpc forbids read() beside it
        self._outbox: asyncio.Queue[Command] = asyncio.Queue()

    async def greet(self) -> None:
        """Wait for the worker's Hello.

        Raises:
            ControlError: none came within `HELLO_SECONDS`, or another event came first.
        """
        self.hello = await _read_hello(self._events)

    def close(self) -> None:
        """End the stream."""
        self._call.cancel()

    async def card(self) -> pb.ModelCard:
        """Ask what the worker serves.

        Raises:
            ControlError: it does not say, for now.
        """
        try:
            card = await self._stub.Describe(pb.DescribeRequest(), metadata=self._metadata, timeout=DESCRIBE_SECONDS)
        except grpc.aio.AioRpcError as error:
            raise ControlError(describe(error)) from error
        assert isinstance(card, pb.ModelCard)
        return card

    def send(self, command: Command) -> None:
        """Queue a command, or what makes one; commands leave in order. What is queued when the stream breaks is lost.

        A command of megabytes is better made in a thread when its turn has come than on the event loop.
        """
        self._outbox.put_nowait(command)

    async def events(self) -> AsyncIterator[pb.ControlEvent]:
        """Yield what the worker sends until it closes the stream.

        Raises:
            ControlError: the stream broke.
        """
        writer = asyncio.create_task(self._write(), name="control writer")
        try:
            async for event in self._events:
                yield event
        except grpc.aio.AioRpcError as error:
            raise ControlError(describe(error)) from error
        finally:
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)

    async def _write(self) -> None:
        try:
            while True:
                command = await self._outbox.get()
                if not isinstance(command, pb.ControlCommand):
                    command = await asyncio.to_thread(command)
                await self._call.write(command)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            self._call.cancel()  # the reader sees the end and reports it


@asynccontextmanager
async def open_control(dial: Dial) -> AsyncIterator[ControlStream]:
    """Open a stream and wait for the worker's Hello; leaving the block closes it.

    Raises:
        ControlError: no connection, a refused token, no Hello within `HELLO_SECONDS`, or another first event.
    """
    channel = await _open_channel(dial)
    try:
        stub = EngineStub(channel)  # type: ignore[no-untyped-call]  # generated code
        stream = ControlStream(stub, dial.token)
        try:
            await stream.greet()
            yield stream
        finally:
            stream.close()
    finally:
        await channel.close(None)


async def _open_channel(dial: Dial) -> grpc.aio.Channel:
    # A unix socket does not leave the machine: TLS is for host:port.
    if dial.ca_file and not dial.address.startswith("unix:"):
        try:
            roots = await asyncio.to_thread(Path(dial.ca_file).read_bytes)
        except OSError as error:
            raise ControlError(f"ENGINE_TLS_CA={dial.ca_file} cannot be read: {error}") from error
        return grpc.aio.secure_channel(dial.address, grpc.ssl_channel_credentials(roots), options=_OPTIONS)
    return grpc.aio.insecure_channel(dial.address, options=_OPTIONS)


async def _read_hello(events: AsyncIterator[pb.ControlEvent]) -> pb.Hello:
    try:
        async with asyncio.timeout(HELLO_SECONDS):
            event = await anext(events)
    except TimeoutError as error:
        raise ControlError(f"no Hello within {HELLO_SECONDS:g} s") from error
    except StopAsyncIteration as error:
        raise ControlError("the worker closed the stream without a Hello") from error
    except grpc.aio.AioRpcError as error:
        raise ControlError(describe(error)) from error
    if event.WhichOneof("event") != "hello":
        raise ControlError(f"the first event is {event.WhichOneof('event')!r}, not hello")
    return event.hello


def describe(error: grpc.aio.AioRpcError) -> str:
    """Return a status as one line."""
    return f"{error.code().name}: {error.details()}"
