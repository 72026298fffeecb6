"""What a response says of its output: items that open, grow and close. Pure: a call returns the events to be said."""

from collections.abc import Sequence
from typing import Any

from gateway.api.tools.pieces import Arguments, CallBegun, Content, Piece
from gateway.realtime import says
from gateway.realtime.items import CallItem, Item, MessageItem, OutputText, item_object, new_id


class Output:
    """The items of one response, one after another: a message, and calls of functions.

    Args:
        response_id: whose output it is.
        previous_id: the item that the first one follows in the conversation.
        joins: whether the items are added to the conversation, which is told too.
    """

    def __init__(self, response_id: str, previous_id: str | None, *, joins: bool) -> None:
        self._response_id = response_id
        self._previous_id = previous_id
        self._joins = joins
        self._open: _Message | _Call | None = None
        self.items: list[Item] = []  # closed

    @property
    def is_empty(self) -> bool:
        """Whether nothing has been said."""
        return self._open is None and not self.items

    @property
    def is_text(self) -> bool:
        """Whether text goes on what is open, or is the first that there is."""
        return isinstance(self._open, _Message) or self.is_empty

    def objects(self) -> list[dict[str, Any]]:
        """Return the closed items as events show them."""
        return [item_object(item) for item in self.items]

    def take(self, piece: Piece) -> list[str]:
        """Add a piece of text, or of a call."""
        if isinstance(piece, Content):
            return self.text(piece.text)
        if isinstance(piece, CallBegun):
            return self._call(piece)
        return self._arguments(piece.text) if isinstance(piece, Arguments) else self.close("completed")

    def text(self, text: str, logprobs: Sequence[Any] = ()) -> list[str]:
        """Add to the message, which an empty text opens too; `logprobs`: of tokens that have come with it."""
        said: list[str] = []
        if not isinstance(self._open, _Message):
            said += self.close("completed")
            self._open = _Message()
            said += self._opened(self._open)
            said.append(self._event("response.content_part.added", content_index=0, part={"type": "text", "text": ""}))
        if text or logprobs:
            self._open.pieces.append(text)
            scores: dict[str, Any] = {"logprobs": logprobs} if logprobs else {}
            said.append(self._event("response.output_text.delta", content_index=0, delta=text, **scores))
        return said

    def close(self, status: str) -> list[str]:
        """Close the item that is open, if one is; `status`: completed or incomplete."""
        current = self._open
        if current is None:
            return []
        item = current.item(status)
        said = self._closing(current)
        shown = item_object(item)
        if self._joins:
            said.append(says.event("conversation.item.done", item=shown, previous_item_id=self._previous_id))
        said.append(self._event("response.output_item.done", named=False, item=shown))
        self._open = None
        self._previous_id = current.id
        self.items.append(item)
        return said

    def _call(self, begun: CallBegun) -> list[str]:
        said = self.close("completed")
        self._open = _Call(begun.name, begun.id)
        return said + self._opened(self._open)

    def _arguments(self, piece: str) -> list[str]:
        assert isinstance(self._open, _Call), "a call has begun"
        self._open.pieces.append(piece)
        return [self._event("response.function_call_arguments.delta", call_id=self._open.call_id, delta=piece)]

    def _opened(self, current: "_Message | _Call") -> list[str]:
        item = item_object(current.item("in_progress")) | ({"content": []} if isinstance(current, _Message) else {})
        said = [self._event("response.output_item.added", named=False, item=item)]
        if self._joins:
            said.append(says.event("conversation.item.added", item=item, previous_item_id=self._previous_id))
        return said

    def _closing(self, current: "_Message | _Call") -> list[str]:
        whole = "".join(current.pieces)
        if isinstance(current, _Call):
            done = self._event(
                "response.function_call_arguments.done", call_id=current.call_id, name=current.name, arguments=whole
            )
            return [done]
        part = {"type": "text", "text": whole}
        return [
            self._event("response.output_text.done", content_index=0, text=whole),
            self._event("response.content_part.done", content_index=0, part=part),
        ]

    def _event(self, kind: str, *, named: bool = True, **fields: object) -> str:
        """Return an event about the item that is open; `named`: by its id, where the event doesn't show it."""
        assert self._open is not None
        item = {"item_id": self._open.id} if named else {}
        return says.event(kind, response_id=self._response_id, **item, output_index=len(self.items), **fields)


class _Message:
    """A message that is being said."""

    def __init__(self) -> None:
        self.id = new_id()
        self.pieces: list[str] = []

    def item(self, status: Any) -> MessageItem:
        text = "".join(self.pieces)
        return MessageItem(id=self.id, status=status, role="assistant", content=[OutputText(text)])


class _Call:
    """A call whose arguments are being said."""

    def __init__(self, name: str, call_id: str) -> None:
        self.id = new_id()
        self.call_id = call_id
        self.name = name
        self.pieces: list[str] = []

    def item(self, status: Any) -> CallItem:
        arguments = "".join(self.pieces)
        return CallItem(id=self.id, status=status, name=self.name, call_id=self.call_id, arguments=arguments)
