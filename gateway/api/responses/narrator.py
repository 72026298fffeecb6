"""What a response tells of itself. Pure: from the same steps come the same events, live and out of the store.

    created, queued (background), in_progress
      output_item.added, content_part.added, output_text.delta ... output_text.done, content_part.done,
      output_item.done
      output_item.added, function_call_arguments.delta ... function_call_arguments.done, output_item.done
    completed | incomplete | failed

There is no event of OpenAI's for a cancelled response: it ends with `response.incomplete`, whose response says so.
"""

from collections.abc import Mapping
from typing import Any

from gateway.api.responses.document import Document, Ending, Step

Event = dict[str, Any]

_LAST = {
    "completed": "response.completed",
    "incomplete": "response.incomplete",
    "failed": "response.failed",
    "cancelled": "response.incomplete",
}


class Narrator:
    """Takes the steps of one response in their order; each call returns the events that they are.

    Args:
        head: the response's object without what comes out, see `objects.head_of`.
    """

    def __init__(self, head: Mapping[str, Any]) -> None:
        self._head = head
        self._key = str(head["id"]).removeprefix("resp_")
        self._done: list[dict[str, Any]] = []  # items
        self._open: dict[str, Any] | None = None  # the item that is being written, without what is in `_pieces`
        self._pieces: list[str] = []
        self._scores: list[dict[str, Any]] = []
        self._status = "queued" if head["background"] else "in_progress"
        self._ending: Ending | None = None
        self._number = 0

    @property
    def response(self) -> dict[str, Any]:
        """The response as it is now."""
        output = [*self._done, self._item("in_progress")] if self._open is not None else list(self._done)
        response = {**self._head, "status": self._status, "output": output}
        if (ending := self._ending) is not None:
            response |= {"usage": ending.usage, "error": ending.error}
            response["completed_at"] = ending.at if ending.status == "completed" else None
            response["incomplete_details"] = {"reason": ending.reason} if ending.reason else None
        return response

    def opening(self) -> list[Event]:
        """Return the events before any step."""
        second = "response.queued" if self._head["background"] else "response.in_progress"
        return [self._of_response("response.created"), self._of_response(second)]

    def take(self, step: Step) -> list[Event]:
        """Return the events of one step."""
        if step.kind == "admitted":
            self._status = "in_progress"
            return [self._of_response("response.in_progress")] if self._head["background"] else []
        if step.kind == "call":
            return [*self._close("completed"), *self._begin_call(step)]
        if step.kind == "arguments":
            self._pieces.append(step.text)
            return [self._of_item("response.function_call_arguments.delta", delta=step.text)]
        begun = [] if self._open is not None and self._open["type"] == "message" else self._begin_message()
        self._pieces.append(step.text)
        self._scores += step.scores
        return [*begun, self._of_text("response.output_text.delta", delta=step.text, logprobs=list(step.scores))]

    def end(self, ending: Ending) -> list[Event]:
        """Return the last events. A good end without any output is an empty message."""
        events: list[Event] = []
        if self._open is None and not self._done and ending.status in ("completed", "incomplete"):
            events += self._begin_message()
        events += self._close("completed" if ending.status == "completed" else "incomplete")
        self._status, self._ending = ending.status, ending
        return [*events, self._of_response(_LAST[ending.status])]

    def _begin_message(self) -> list[Event]:
        events = self._close("completed")
        self._open = {"id": self._id("msg"), "type": "message", "status": "in_progress", "role": "assistant"}
        added = self._of_output("response.output_item.added", self._open | {"content": []})
        part = self._of_part("response.content_part.added", _text_part("", []))
        return [*events, added, part]

    def _begin_call(self, step: Step) -> list[Event]:
        self._open = {
            "id": self._id("fc"),
            "type": "function_call",
            "status": "in_progress",
            "call_id": step.call_id,
            "name": step.text,
        }
        return [self._of_output("response.output_item.added", self._open | {"arguments": ""})]

    def _close(self, status: str) -> list[Event]:
        """End the item that is being written."""
        if self._open is None:
            return []
        item, text = self._item(status), "".join(self._pieces)
        if item["type"] == "message":
            events = [
                self._of_text("response.output_text.done", text=text, logprobs=list(self._scores)),
                self._of_part("response.content_part.done", item["content"][0]),
            ]
        else:
            events = [self._of_item("response.function_call_arguments.done", name=item["name"], arguments=text)]
        events.append(self._of_output("response.output_item.done", item))
        self._done.append(item)
        self._open = None
        self._pieces, self._scores = [], []
        return events

    def _item(self, status: str) -> dict[str, Any]:
        assert self._open is not None
        text = "".join(self._pieces)
        if self._open["type"] == "message":
            return self._open | {"status": status, "content": [_text_part(text, list(self._scores))]}
        return self._open | {"status": status, "arguments": text}

    def _id(self, kind: str) -> str:
        """Return the id of the next item; `items.home_of` finds the response in it."""
        return f"{kind}_{self._key}{len(self._done):04x}"

    def _event(self, kind: str, **fields: Any) -> Event:
        event = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return event

    def _of_response(self, kind: str) -> Event:
        return self._event(kind, response=self.response)

    def _of_output(self, kind: str, item: dict[str, Any]) -> Event:
        return self._event(kind, output_index=len(self._done), item=item)

    def _of_item(self, kind: str, **fields: Any) -> Event:
        assert self._open is not None, "a step of an item came before the item"
        return self._event(kind, item_id=self._open["id"], output_index=len(self._done), **fields)

    def _of_text(self, kind: str, **fields: Any) -> Event:
        return self._of_item(kind, content_index=0, **fields)

    def _of_part(self, kind: str, part: dict[str, Any]) -> Event:
        return self._of_text(kind, part=part)


def response_of(document: Document) -> dict[str, Any]:
    """Return the object of a stored response."""
    narrator = Narrator(document.head)
    for step in document.steps:
        narrator.take(step)
    if document.ending is not None:
        narrator.end(document.ending)
    return narrator.response


def _text_part(text: str, scores: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "annotations": [], "logprobs": scores, "text": text}
