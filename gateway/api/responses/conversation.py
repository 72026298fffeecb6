"""Items as the chat surface has them, and which of them go when not all fit. Pure.

A call and the message before it are one turn of the assistant's, as a chat template has them.
"""

from collections.abc import Sequence

from gateway.api.functions import CalledFunction, ToolCall
from gateway.api.responses.items import Item, text_of
from gateway.api.schemas import Message


def messages_of(instructions: str | None, items: Sequence[Item]) -> list[Message]:
    """Return the messages of a conversation; instructions come first, as the system's."""
    messages = [] if not instructions else [Message(role="system", content=instructions)]
    for item in items:
        if item["type"] == "function_call":
            call = ToolCall(id=item["call_id"], function=CalledFunction(item["name"], item["arguments"]))
            if not messages or messages[-1].role != "assistant":
                messages.append(Message(role="assistant"))
            messages[-1].tool_calls = [*(messages[-1].tool_calls or ()), call]
        elif item["type"] == "function_call_output":
            messages.append(Message(role="tool", content=text_of(item), tool_call_id=item["call_id"]))
        else:
            messages.append(Message(role=item["role"], content=text_of(item)))
    return messages


def cuts(items: Sequence[Item]) -> list[list[Item]]:
    """Return what is left of a context when its oldest items go: all of it first, then ever less.

    What is left begins with a message of the user's, so that no answer loses its question and no call its output, and
    ends with the newest item. Messages of the system's or a developer's at the very beginning stay.
    """
    first = next((n for n, item in enumerate(items) if not _is_system(item)), len(items))
    places = [n for n in range(first, len(items)) if items[n].get("role") == "user"]
    return [list(items)] + [[*items[:first], *items[n:]] for n in places if n > first]


def _is_system(item: Item) -> bool:
    return item.get("role") in ("system", "developer")
