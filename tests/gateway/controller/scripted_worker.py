"""A worker's control side that a test scripts: it withholds acks, breaks streams and delivers usage twice.

It serves the real protocol over a real socket. What it applies, it applies as the protocol says.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from engine.protocol import engine_pb2 as pb
from engine.protocol.engine_pb2_grpc import EngineServicer, add_EngineServicer_to_server
from tenants.contracts import WorkerAnnouncement

TOKEN = "worker-token"


class ScriptedWorker(EngineServicer):
    """State that outlives streams, as a real worker's does."""

    def __init__(self, worker_id: str, address: str) -> None:
        self.worker_id = worker_id
        self.address = address
        self.token = TOKEN
        self.mark = (0, 0)
        self.grants: dict[str, pb.TenantPolicy] = {}
        self.groups: dict[str, pb.ShareGroup] = {}
        self.card = pb.ModelCard(worker_id=worker_id, model="scripted", digest="0" * 64, block_size=16)
        self.num_described = 0
        self.pushes: list[pb.PolicyPush] = []
        self.hold_acks = False
        self.refuses = False  # new streams, as a worker that is away
        self.journal: dict[int, pb.UsageRecord] = {}
        self.usage_acks: list[int] = []
        self.draining: list[bool] = []
        self.num_streams = 0
        self._calls: list[Any] = []
        self._outbox: asyncio.Queue[pb.ControlEvent] | None = None

    @property
    def connected(self) -> bool:
        """Whether a controller's stream is open."""
        return self._outbox is not None

    def announcement(self, kv_bytes: int = 1 << 30) -> WorkerAnnouncement:
        """Return what it would announce."""
        return WorkerAnnouncement(
            worker_id=self.worker_id,
            address=self.address,
            model="scripted",
            digest="0" * 64,
            kv_bytes=kv_bytes,
            block_bytes=1 << 16,
            max_context=2048,
        )

    def use(self, sequence: int, request_id: str, tenant: str, completion_tokens: int = 5) -> None:
        """A request ended: journal its record and deliver it."""
        now = time.time()
        record = pb.UsageRecord(
            sequence=sequence,
            request_id=request_id,
            tenant=tenant,
            key="abc123",
            model="scripted",
            worker_id=self.worker_id,
            prompt_tokens=7,
            completion_tokens=completion_tokens,
            started_at=now - 1,
            finished_at=now,
            finish_reason=pb.FINISH_REASON_STOP,
        )
        self.journal[sequence] = record
        self.emit(pb.ControlEvent(usage=pb.UsageBatch(records=[record])))

    def emit(self, event: pb.ControlEvent) -> None:
        """Send an event on the open stream, if there is one."""
        if self._outbox is not None:
            self._outbox.put_nowait(event)

    def release_acks(self) -> None:
        """Ack what was applied, and go on acking."""
        self.hold_acks = False
        self._ack()

    def break_stream(self) -> None:
        """Drop the open stream."""
        for call in self._calls:
            call.cancel()

    async def Describe(self, request: pb.DescribeRequest, context: Any) -> pb.ModelCard:  # noqa: N802
        """Return the card, or refuse while the test has none for it."""
        self.num_described += 1
        if not self.card.tokenizer_json:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the engine core is starting: try again soon")
        return self.card

    async def Control(self, commands: AsyncIterator[pb.ControlCommand], context: Any) -> None:  # noqa: N802
        """Serve one controller; a newer stream ends an older one."""
        if ("authorization", f"Bearer {self.token}") not in context.invocation_metadata():
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the worker token is missing or wrong")
        if self.refuses:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "away")
        self.break_stream()
        self.num_streams += 1
        outbox: asyncio.Queue[pb.ControlEvent] = asyncio.Queue()
        version, epoch = self.mark
        hello = pb.Hello(worker_id=self.worker_id, applied_version=version, applied_epoch=epoch)
        hello.grants.extend(self.grants.values())
        for group in self.groups.values():  # in force now, without namespaces and prefixes
            hello.share_groups.add(
                name=group.name, kv_soft_bytes=group.kv_soft_bytes, kv_hard_bytes=group.kv_hard_bytes
            )
        await context.write(pb.ControlEvent(hello=hello))
        self._outbox = outbox
        if self.journal:
            outbox.put_nowait(pb.ControlEvent(usage=pb.UsageBatch(records=list(self.journal.values()))))
        tasks = [asyncio.create_task(self._read(commands)), asyncio.create_task(self._write(outbox, context))]
        self._calls = tasks
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            if self._outbox is outbox:
                self._outbox = None

    async def _write(self, outbox: "asyncio.Queue[pb.ControlEvent]", context: Any) -> None:
        while True:
            await context.write(await outbox.get())

    async def _read(self, commands: AsyncIterator[pb.ControlCommand]) -> None:
        async for command in commands:
            match command.WhichOneof("command"):
                case "policy":
                    if not self._knows_all(command.policy):
                        return  # as a real worker: it ends the stream
                    self._apply(command.policy)
                case "usage_ack":
                    self.usage_acks.append(command.usage_ack.up_to)
                    self.journal = {
                        sequence: record
                        for sequence, record in self.journal.items()
                        if sequence > command.usage_ack.up_to
                    }
                case "drain":
                    self.draining.append(command.drain.draining)

    def _knows_all(self, push: pb.PolicyPush) -> bool:
        prefixes = [prefix for group in push.share_groups for prefix in group.prefixes]
        return all(token < self.card.vocab_size for prefix in prefixes for token in prefix.token_ids)

    def _apply(self, push: pb.PolicyPush) -> None:
        self.pushes.append(push)
        if (push.version, push.epoch) >= self.mark:
            if push.snapshot:
                self.grants, self.groups = {}, {}
            self.grants.update((policy.tenant, policy) for policy in push.tenants)
            self.groups.update((group.name, group) for group in push.share_groups)
            for tenant in push.removed_tenants:
                self.grants.pop(tenant, None)
            for name in push.removed_share_groups:
                self.groups.pop(name, None)
            self.mark = (push.version, push.epoch)
        if not self.hold_acks:
            self._ack()

    def _ack(self) -> None:
        version, epoch = self.mark
        self.emit(pb.ControlEvent(applied=pb.Applied(version=version, epoch=epoch, at=time.time())))


@asynccontextmanager
async def scripted_worker(worker_id: str, folder: Path) -> AsyncIterator[ScriptedWorker]:
    """Serve a scripted worker on a unix socket in `folder`."""
    worker = ScriptedWorker(worker_id, f"unix:{folder}/{worker_id}.sock")
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", 64 << 20)])
    add_EngineServicer_to_server(worker, server)  # type: ignore[no-untyped-call]  # generated code
    server.add_insecure_port(worker.address)
    await server.start()
    try:
        yield worker
    finally:
        worker.break_stream()
        await server.stop(0)
