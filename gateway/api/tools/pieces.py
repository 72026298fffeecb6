"""What becomes of an output's text where functions may be called: content, and calls piece by piece."""

from collections.abc import Iterable
from typing import NamedTuple


class Content(NamedTuple):
    """Text that is no call."""

    text: str


class CallBegun(NamedTuple):
    """A call of the function `name`, the output's `number`-th, from 0."""

    number: int
    id: str
    name: str


class Arguments(NamedTuple):
    """More of the arguments of a call, as the model wrote them."""

    number: int
    text: str


class CallEnded(NamedTuple):
    """All of a call's arguments have been told."""

    number: int


Piece = Content | CallBegun | Arguments | CallEnded


class Call(NamedTuple):
    """A whole call. `arguments` is JSON, unless the model wrote something else or was cut off."""

    id: str
    name: str
    arguments: str


class Told(NamedTuple):
    """A whole output. `content` is None where there is nothing but calls."""

    content: str | None
    calls: list[Call]


def whole(pieces: Iterable[Piece]) -> Told:
    """Join an output's pieces."""
    texts: list[str] = []
    begun: list[CallBegun] = []
    arguments: list[list[str]] = []
    for piece in pieces:
        if isinstance(piece, Content):
            texts.append(piece.text)
        elif isinstance(piece, CallBegun):
            begun.append(piece)
            arguments.append([])
        elif isinstance(piece, Arguments):
            arguments[piece.number].append(piece.text)
    calls = [Call(call.id, call.name, "".join(parts)) for call, parts in zip(begun, arguments, strict=True)]
    content = "".join(texts)
    return Told(content if content or not calls else None, calls)
