"""Control streams: policy, acks and drain come down; Hello, Applied, Settled, Stats and usage records go up.

Everything that goes up is either the newest of its kind or read from the journal when the controller is ready for it,
so a controller that reads slowly costs no memory.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Protocol

import grpc
import structlog

from engine.errors import ProtocolError
from engine.front.journal import Journal
from engine.protocol import pb

_BATCH_RECORDS = 256
_UNACKED_RECORDS = 2048  # sent and not acked, at most
_RESEND_SECONDS = 10.0  # without an ack, unacked records go again
_HELLO_SECONDS = 10.0  # how long Hello waits for a core that is starting
_ACKS_KEPT = 128
_LAST_WRITE_SECONDS = 1.0

log = structlog.get_logger(part="control")

Write = Callable[[pb.ControlEvent], Awaitable[None]]


class ControlPlane(Protocol):
    """The worker as a control stream sees it."""

    async def settled(self) -> None:
        """Return when the core is ready and has applied the policy that this worker holds."""
        ...

    def hello(self) -> pb.Hello:
        """Return the first event of a stream."""
        ...

    def stats(self, *, complete: bool) -> pb.Stats:
        """Return the statistics now; complete ones have also what has not changed since the last."""
        ...

    def push_policy(self, push: pb.PolicyPush) -> Sequence[pb.ControlEvent]:
        """Take a push; return the acks of what is in force, at once, when it is not newer.

        Raises:
            ProtocolError: it names a policy that cannot be in force.
        """
        ...

    def drain(self, draining: bool) -> None:
        """Take nothing new, or take again."""
        ...


class ControlStream:
    """One controller's stream."""

    def __init__(self, plane: ControlPlane, journal: Journal) -> None:
        self.ended: asyncio.Future[tuple[grpc.StatusCode, str]] = asyncio.get_running_loop().create_future()
        self._plane = plane
        self._journal = journal
        self._wake = asyncio.Event()
        self._acks: deque[pb.ControlEvent] = deque(maxlen=_ACKS_KEPT)
        self._stats_due = False
        self._has_told_all = False  # this controller has had complete statistics
        self._records_due = True
        self._closing = False
        self._sent = self._highest_sent = 0
        self._acked: int | None = None  # None until the first record was sent: its predecessors are not in the journal
        self._progress_at = time.monotonic()

    async def serve(self, commands: AsyncIterator[pb.ControlCommand], write: Write) -> None:
        """Serve until the controller closes its side or `end` is called.

        Raises:
            ProtocolError: the controller sent what no worker takes.
        """
        reading, sending = asyncio.create_task(self._read(commands)), asyncio.create_task(self._send(write))
        ending: set[asyncio.Future[Any]] = {reading, sending, self.ended}
        try:
            done, _ = await asyncio.wait(ending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            reading.cancel()
            self._closing = True
            self._wake.set()
            try:
                # A write that is cancelled on its way would keep the status that follows from the controller.
                await asyncio.wait({sending}, timeout=_LAST_WRITE_SECONDS)
            finally:
                sending.cancel()
                await asyncio.gather(reading, sending, return_exceptions=True)

    def end(self, code: grpc.StatusCode, details: str) -> None:
        """End the stream with a status; the first call decides it."""
        if not self.ended.done():
            self.ended.set_result((code, details))

    def applied(self, applied: pb.Applied) -> None:
        """Send an ack."""
        self._acks.append(pb.ControlEvent(applied=applied))
        self._wake.set()

    def settled(self, settled: pb.Settled) -> None:
        """Say that nobody is above the limits of a push any more."""
        self._acks.append(pb.ControlEvent(settled=settled))
        self._wake.set()

    def stats_due(self) -> None:
        """Send statistics."""
        self._stats_due = True
        self._wake.set()

    def records_due(self) -> None:
        """Look for new usage records."""
        self._records_due = True
        self._wake.set()

    async def _read(self, commands: AsyncIterator[pb.ControlCommand]) -> None:
        async for command in commands:
            match command.WhichOneof("command"):
                case "policy":
                    self._acks.extend(self._plane.push_policy(command.policy))
                    self._wake.set()
                case "usage_ack":
                    self._take_ack(command.usage_ack.up_to)
                case "drain":
                    self._plane.drain(command.drain.draining)

    def _take_ack(self, up_to: int) -> None:
        # Nothing that this stream has not delivered can have been stored by its controller.
        up_to = min(up_to, self._highest_sent)
        if self._acked is None or up_to <= self._acked:
            return
        self._acked = up_to
        self._sent = max(self._sent, up_to)
        self._progress_at = time.monotonic()
        self._journal.ack(up_to)
        self.records_due()

    async def _send(self, write: Write) -> None:
        await self._wait_settled()
        await write(pb.ControlEvent(hello=self._plane.hello()))
        while not self._closing:
            while self._acks:
                await write(self._acks.popleft())
            if self._stats_due:
                self._stats_due = False
                self._resend_when_late()
                complete, self._has_told_all = not self._has_told_all, True
                await write(pb.ControlEvent(stats=self._plane.stats(complete=complete)))
            if self._records_due and self._sent - (self._acked or 0) < _UNACKED_RECORDS:
                await self._send_records(write)
                continue
            if not (self._acks or self._stats_due or self._closing):
                self._wake.clear()
                await self._wake.wait()

    async def _wait_settled(self) -> None:
        try:
            await asyncio.wait_for(self._plane.settled(), _HELLO_SECONDS)
        except TimeoutError:
            log.warning("hello_before_core", seconds=_HELLO_SECONDS)

    async def _send_records(self, write: Write) -> None:
        self._records_due = False
        entries = await self._journal.read(self._sent, _BATCH_RECORDS)
        if not entries:
            return
        records = []
        for entry in entries:
            record = pb.UsageRecord.FromString(entry.record)
            record.sequence = entry.sequence
            records.append(record)
        self._sent = entries[-1].sequence
        self._highest_sent = max(self._highest_sent, self._sent)
        self._records_due = True
        if self._acked is None:
            self._acked = entries[0].sequence - 1
            self._progress_at = time.monotonic()
        await write(pb.ControlEvent(usage=pb.UsageBatch(records=records)))

    def _resend_when_late(self) -> None:
        if self._acked is None or self._sent == self._acked:
            self._progress_at = time.monotonic()
        elif time.monotonic() - self._progress_at > _RESEND_SECONDS:
            log.warning("usage_resent", after=self._acked, up_to=self._sent)
            self._progress_at = time.monotonic()
            self._sent = self._acked
            self._records_due = True


class ControlHub:
    """The streams of controllers: the newest serves, older ones are told to go."""

    def __init__(self, plane: ControlPlane, journal: Journal) -> None:
        self._plane = plane
        self._journal = journal
        self._current: ControlStream | None = None

    def applied(self, applied: pb.Applied) -> None:
        """Pass on the core's ack."""
        if self._current is not None:
            self._current.applied(applied)

    def settled(self, settled: pb.Settled) -> None:
        """Pass on that nobody is above the limits of a push any more."""
        if self._current is not None:
            self._current.settled(settled)

    def stats_due(self) -> None:
        """Send statistics to the controller."""
        if self._current is not None:
            self._current.stats_due()

    def records_due(self) -> None:
        """The journal has new records."""
        if self._current is not None:
            self._current.records_due()

    async def serve(
        self,
        commands: AsyncIterator[pb.ControlCommand],
        context: "grpc.aio.ServicerContext[pb.ControlCommand, pb.ControlEvent]",
    ) -> None:
        """Serve a new stream and end the old one."""
        stream = ControlStream(self._plane, self._journal)
        if self._current is not None:
            self._current.end(grpc.StatusCode.ABORTED, "a newer control stream has taken over")
        self._current = stream
        log.info("controller_connected")
        try:
            await stream.serve(commands, context.write)
        except ProtocolError as error:
            log.error("controller_refused", error=str(error))
            stream.end(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        finally:
            if self._current is stream:
                self._current = None
            log.info("controller_gone")
        if stream.ended.done():
            await context.abort(*stream.ended.result())

    def stop(self) -> None:
        """End the stream: the worker is going. What was not acked is sent again by its successor."""
        if self._current is not None:
            self._current.end(grpc.StatusCode.UNAVAILABLE, "the worker is shutting down")
