"""A front without gRPC and without a core: a dispatcher over a real meter and journal, frames given by hand."""

import asyncio
import threading
from collections.abc import Collection
from pathlib import Path

from tokenizers import Tokenizer

from engine import ipc
from engine.front.connection import OUTBOX_BYTES, Connection
from engine.front.dispatch import Dispatcher
from engine.front.journal import Journal
from engine.front.meter import Meter
from engine.front.table import CounterTable
from engine.model.folder import read_folder
from engine.protocol import pb

DEADLINE_SECONDS = 60


class Front:
    """A dispatcher and its meter; `sent` is what the core would get."""

    def __init__(self, model: Path, folder: Path) -> None:
        self.folder = folder
        self.model = read_folder(model, name="tiny")
        self.tokenizer = Tokenizer.from_buffer(self.model.tokenizer_json)
        self.journal = Journal(folder / "journal.sqlite3")
        self.meter = Meter(folder, self.journal)
        self.sent: list[ipc.ToCore] = []
        self.dispatcher = Dispatcher(self.meter, "worker-0", self.sent.append)
        self.dispatcher.serve_model(self.model, self.tokenizer)
        self.dispatcher.unavailable = ""
        self.num_requests = 0

    def encode(self, text: str) -> list[int]:
        """Encode text one character a token."""
        return [token for character in text for token in self.tokenizer.encode(character, add_special_tokens=False).ids]


def watching_children() -> set[threading.Thread]:
    """Return the threads of this process that wait for the end of a child, one each."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("child-")}


async def reap(besides: Collection[threading.Thread] = ()) -> None:
    """Wait until children that were told to end are gone: all but those of `besides`."""
    for thread in watching_children().difference(besides):
        await asyncio.to_thread(thread.join, DEADLINE_SECONDS)
    await asyncio.sleep(0)  # what the threads have left to the loop


class Client:
    """One connection; what it is told never runs ahead of the counter table."""

    def __init__(self, front: Front, outbox_bytes: int = OUTBOX_BYTES) -> None:
        self.front = front
        self.connection = Connection(outbox_bytes, front.dispatcher.cut)
        self.events: list[pb.Event] = []
        self.request_id = f"request-{front.num_requests}"
        front.num_requests += 1
        self._pump = asyncio.create_task(self.connection.pump(self._write))

    def submit(self, **fields: object) -> int:
        """Submit the one request of this client and return its handle."""
        submit = pb.Submit(
            **{
                "stream": 1,
                "request_id": self.request_id,
                "tenant": "minnow",
                "namespace": bytes(32),
                "token_ids": [5, 6, 7],
                **fields,
            }  # type: ignore[arg-type]
        )
        self.front.dispatcher.submit(self.connection, submit)
        frame = self.front.sent.pop()
        assert isinstance(frame, ipc.SubmitFrame)
        return frame.handle

    def counted(self) -> int | None:
        """Return the completion tokens of the request in the counter table, as another process would find them.

        None: the journal has its record, and the table has none any more.
        """
        table = CounterTable(self.front.folder / "counters")
        try:
            found = [orphan.counters for orphan in table.orphans() if orphan.identity.request_id == self.request_id]
        finally:
            table.close()
        return found[0].completion_tokens if found and found[0] is not None else None

    async def end(self) -> None:
        """Wait until nothing more will come."""
        self.connection.no_more_commands()
        await asyncio.wait_for(self._pump, DEADLINE_SECONDS)

    async def leave(self) -> None:
        """Break the connection."""
        self._pump.cancel()
        await asyncio.wait({self._pump})
        self.front.dispatcher.drop(self.connection)

    async def close(self) -> None:
        """Break the connection and wait until no request is left."""
        await self.leave()
        await asyncio.wait_for(self.front.dispatcher.idle.wait(), DEADLINE_SECONDS)

    async def record(self) -> pb.UsageRecord:
        """Return the one usage record of the request."""
        entries = await self.front.journal.read(0, 1 << 30)
        records = [pb.UsageRecord.FromString(entry.record) for entry in entries]
        (record,) = [record for record in records if record.request_id == self.request_id]
        return record

    def tokens(self) -> int:
        """Return how many tokens the client was told of."""
        return sum(len(event.delta.token_ids) for event in self.events)

    def of(self, index: int) -> tuple[list[int], str, list[int]]:
        """Return tokens, text and ends of one output."""
        events = [event for event in self.events if event.index == index]
        token_ids = [token for event in events for token in event.delta.token_ids]
        text = "".join(event.delta.text + event.output_finished.text for event in events)
        return token_ids, text, [event.output_finished.reason for event in events if event.HasField("output_finished")]

    def ends(self) -> list[pb.Event]:
        """Return the ends of the request."""
        return [event for event in self.events if event.HasField("finished")]

    async def _write(self, message: pb.StepEvents) -> None:
        self.events += message.events
