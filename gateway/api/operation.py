"""What the OpenAPI document says of one method of one path."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from gateway.api.decode import Off
from gateway.api.errors import ApiError

Errors = tuple[type[ApiError], ...]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a path, a query or a head."""

    name: str
    place: Literal["path", "query", "header"]
    description: str
    schema: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of one path."""

    method: Literal["GET", "POST", "DELETE"]
    path: str
    id: str
    tag: str
    summary: str
    parameters: tuple[Parameter, ...] = ()
    request: type[Any] | None = None  # the Struct that the body is read with
    off: Off = field(default_factory=dict)  # fields beside the Struct's that are taken at some values alone
    answers: Mapping[int, Any]  # by status, the type of each
    event: Any = None  # type of a stream's events; None: it can't be streamed
    errors: Errors
    is_limited: bool = False  # counts against the rates, so that the answer tells what is left of them

    @property
    def kinds(self) -> Iterator[Any]:
        """Every type that the document must have."""
        if self.request is not None:
            yield self.request
        yield from self.answers.values()
        if self.event is not None:
            yield self.event
