"""Messages that a client has not read yet, and what becomes of those that are too many.

Nothing is counted by request until there are too many: then the messages are looked through once.
"""

from collections import Counter, deque
from collections.abc import Collection

from engine.protocol import pb


class Outbox:
    """Messages in the order in which they are to leave."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self._messages: deque[tuple[pb.StepEvents, int]] = deque()

    def add(self, message: pb.StepEvents) -> None:
        """Add a message behind the others."""
        size = message.ByteSize()
        self._messages.append((message, size))
        self.num_bytes += size

    def take(self) -> pb.StepEvents | None:
        """Remove and return the first message; None: there is none."""
        if not self._messages:
            return None
        message, size = self._messages.popleft()
        self.num_bytes -= size
        return message

    def clear(self) -> None:
        """Drop everything."""
        self._messages.clear()
        self.num_bytes = 0

    def largest(self, num_bytes: int) -> set[int]:
        """Return the streams that have most waiting: as many as have so many bytes together."""
        waiting: Counter[int] = Counter()
        for message, _ in self._messages:
            for event in message.events:
                waiting[event.stream] += event.ByteSize()
        chosen = set()
        for stream, size in waiting.most_common():
            if num_bytes <= 0:
                break
            chosen.add(stream)
            num_bytes -= size
        return chosen

    def cut(self, streams: Collection[int], detail: str) -> None:
        """Drop what waits of streams but their ends, which become errors that say why."""
        messages = [message for message, _ in self._messages]
        self.clear()
        for message in messages:
            left = [_cut(event, detail) if event.stream in streams else event for event in message.events]
            events = [event for event in left if event is not None]
            if events:
                self.add(pb.StepEvents(events=events))


def _cut(event: pb.Event, detail: str) -> pb.Event | None:
    """Return what is left of an event of a stream that is cut."""
    if event.HasField("refused"):
        return event
    if not event.HasField("finished"):
        return None
    finished = pb.Finished(reason=pb.FINISH_REASON_ERROR, usage=event.finished.usage, detail=detail)
    return pb.Event(stream=event.stream, finished=finished)
