"""What is kept of a response: what went in, and the steps in which it came out. Encoded, it is all that is stored."""

from typing import Any, Literal

import msgspec

from tenants.contracts import ResponseRecord, ResponseStatusName

MOST_BYTES = 4 << 20  # of an encoded document; log-probabilities are left out where they would break it


class Step(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """One thing that happened.

    admitted    a worker took it
    text        more of the answer's text, with the log-probabilities of its tokens where they are asked for
    call        the model begins to call the function `text`, under `call_id`
    arguments   more of that call's arguments
    """

    kind: Literal["admitted", "text", "call", "arguments"]
    text: str = ""
    call_id: str = ""
    scores: tuple[dict[str, Any], ...] = ()


class Ending(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How it ended. `at` is unix seconds."""

    status: Literal["completed", "incomplete", "failed", "cancelled"]
    at: int
    usage: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    reason: str = ""  # why it is incomplete


class Document(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A response. `head` is its object without what comes out; `input` the items of its whole context."""

    head: dict[str, Any]
    input: list[dict[str, Any]]
    steps: tuple[Step, ...] = ()
    ending: Ending | None = None


def encoded(document: Document) -> bytes | None:
    """Return a document as it is stored; None: it is over MOST_BYTES even without log-probabilities."""
    data = msgspec.json.encode(document)
    if len(data) > MOST_BYTES and any(step.scores for step in document.steps):
        bare = tuple(msgspec.structs.replace(step, scores=()) for step in document.steps)
        data = msgspec.json.encode(msgspec.structs.replace(document, steps=bare))
    return data if len(data) <= MOST_BYTES else None


def decoded(record: ResponseRecord) -> Document:
    """Return a stored response's document, with the end that its row says where its writer could say none."""
    document = msgspec.json.decode(record.document, type=Document)
    if document.ending is not None or record.status in ("queued", "in_progress"):
        return document
    return msgspec.structs.replace(document, ending=_end_from_outside(record.status, document))


def _end_from_outside(status: ResponseStatusName, document: Document) -> Ending:
    at = int(document.head["created_at"])
    if status == "cancelled":
        return Ending(status="cancelled", at=at)
    message = "The process that generated this response ended before it did. Create it again."
    return Ending(status="failed", at=at, error={"code": "server_error", "message": message})
