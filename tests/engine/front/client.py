"""A gateway's side of the protocol, small enough to be seen through."""

import asyncio
import itertools
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc

from engine.protocol import pb, rpc
from tests.engine.front.process import TOKEN

POLICY = pb.PolicyPush(
    version=1,
    snapshot=True,
    tenants=[
        pb.TenantPolicy(
            tenant="minnow",
            weight=1,
            kv_hard_bytes=32 << 20,
            max_running=64,
            max_queued=512,
            max_context_tokens=1 << 15,
            max_output_tokens=1 << 15,
        )
    ],
)


@asynccontextmanager
async def channel(address: str, token: str = TOKEN, **options: int) -> AsyncIterator["Client"]:
    """Connect to a worker; `options` are of the grpc channel, without their prefix."""
    # A pool of its own: a restarted worker is not kept waiting by the back-off of an earlier connection.
    fixed = (("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1))
    arguments = [*fixed, *((f"grpc.{name}", value) for name, value in options.items())]
    async with grpc.aio.insecure_channel(address, options=arguments) as opened:
        yield Client(opened, token)


class Client:
    """Calls of one channel."""

    def __init__(self, opened: grpc.aio.Channel, token: str) -> None:
        self.channel = opened
        self.stub = rpc.EngineStub(opened)
        self.metadata = (("authorization", f"Bearer {token}"),)

    def generate(self) -> "GenerateStream":
        """Open a Generate stream."""
        return GenerateStream(self.stub.Generate(metadata=self.metadata))

    def control(self) -> "ControlStream":
        """Open a Control stream."""
        return ControlStream(self.stub.Control(metadata=self.metadata))

    async def describe(self) -> pb.ModelCard:
        """Return the model card."""
        return await self.stub.Describe(pb.DescribeRequest(), metadata=self.metadata, timeout=30)

    async def use_policy(self, push: pb.PolicyPush = POLICY) -> None:
        """Push a policy and wait until it is applied."""
        control = self.control()
        await control.push(push)
        await control.until(lambda event: event.applied.version >= push.version)
        control.call.cancel()


class GenerateStream:
    """One connection; events are collected by stream number."""

    def __init__(self, call: Any) -> None:
        self.call = call
        self.events: dict[int, list[pb.Event]] = {}
        self.messages: list[pb.StepEvents] = []
        self._numbers = itertools.count(1)

    async def submit(
        self, prompt: Sequence[int], *, request_id: str = "", stop: Sequence[str] = (), **fields: Any
    ) -> int:
        """Submit a request of tenant minnow and return its stream number."""
        number = next(self._numbers)
        sampling = pb.Sampling(top_p=1.0, stop=stop, **fields.pop("sampling", {}))
        submit = pb.Submit(
            **{
                "stream": number,
                "request_id": request_id or uuid.uuid4().hex,
                "tenant": "minnow",
                "project": "default",
                "key": "key-1",
                "namespace": bytes(32),
                "token_ids": prompt,
                "sampling": sampling,
                **fields,
            }
        )
        self.events[number] = []
        await self.call.write(pb.Command(submit=submit))
        return number

    async def cancel(self, number: int) -> None:
        """Cancel a request."""
        await self.call.write(pb.Command(cancel=pb.Cancel(stream=number)))

    async def read(self) -> pb.StepEvents:
        """Read one message."""
        message = await asyncio.wait_for(self.call.read(), 60)
        if message is grpc.aio.EOF:
            raise EOFError(f"{await self.call.code()}: {await self.call.details()}")
        self.messages.append(message)
        for event in message.events:
            self.events[event.stream].append(event)
        return message

    async def end(self, number: int) -> pb.Event:
        """Read until a request has ended and return its last event."""
        while not (self.events[number] and is_end(self.events[number][-1])):
            await self.read()
        return self.events[number][-1]

    async def tokens(self, number: int, count: int) -> None:
        """Read until `count` tokens of a request have come."""
        while len(self.token_ids(number)) < count:
            await self.read()

    def token_ids(self, number: int) -> list[int]:
        """Return the tokens of a request so far, those of all its outputs."""
        return [token for event in self.events[number] for token in event.delta.token_ids]

    def text(self, number: int) -> str:
        """Return the text of a request so far."""
        return "".join(event.delta.text + event.finished.text for event in self.events[number])

    def of_output(self, number: int, index: int) -> tuple[list[int], str, list[int]]:
        """Return tokens, text and ends of one output of several so far."""
        events = [event for event in self.events[number] if event.index == index]
        token_ids = [token for event in events for token in event.delta.token_ids]
        text = "".join(event.delta.text + event.output_finished.text for event in events)
        return token_ids, text, [event.output_finished.reason for event in events if event.HasField("output_finished")]


def is_end(event: pb.Event) -> bool:
    """Return whether an event is the last of its stream."""
    return event.WhichOneof("kind") in ("finished", "refused")


class ControlStream:
    """A controller."""

    def __init__(self, call: Any) -> None:
        self.call = call
        self.records: dict[str, pb.UsageRecord] = {}
        self.deliveries: list[pb.UsageRecord] = []

    async def push(self, push: pb.PolicyPush) -> None:
        """Push a policy."""
        await self.call.write(pb.ControlCommand(policy=push))

    async def ack(self, up_to: int) -> None:
        """Ack usage records."""
        await self.call.write(pb.ControlCommand(usage_ack=pb.UsageAck(up_to=up_to)))

    async def read(self) -> pb.ControlEvent:
        """Read one event, keeping usage records."""
        event = await asyncio.wait_for(self.call.read(), 60)
        if event is grpc.aio.EOF:
            raise EOFError(f"{await self.call.code()}: {await self.call.details()}")
        for record in event.usage.records:
            self.deliveries.append(record)
            self.records[record.request_id] = record
        return event

    async def until(self, condition: Any) -> pb.ControlEvent:
        """Read until an event meets the condition."""
        async with asyncio.timeout(60):
            while True:
                event = await self.read()
                if condition(event):
                    return event

    async def usage(self, request_id: str) -> pb.UsageRecord:
        """Return the usage record of a request, waiting for it."""
        while request_id not in self.records:
            await self.read()
        return self.records[request_id]
