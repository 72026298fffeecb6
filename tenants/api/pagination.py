"""Keyset pagination: pages that stay right and fast however far back they go and whatever arrives meanwhile."""

import base64
import binascii
import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from django.db.models import Model, Q, QuerySet
from rest_framework.exceptions import ValidationError
from rest_framework.pagination import BasePagination
from rest_framework.request import Request
from rest_framework.response import Response

DEFAULT_LIMIT = 50
MOST = 200

R = TypeVar("R", bound=Model)
Part = str | int | datetime | uuid.UUID


@dataclass(frozen=True, slots=True)
class Order:
    """A total order of a table: columns, all descending or all ascending, the last one unique.

    `kinds` are the Python types of the columns; a cursor that holds anything else is refused.
    """

    columns: tuple[str, ...]
    kinds: tuple[type[Part], ...]
    newest_first: bool = True


class KeysetPagination(BasePagination):
    """Answers `{"object": "list", "data": [...], "has_more", "next_cursor"}`; takes `?limit` and `?cursor`."""

    def page(
        self,
        queryset: QuerySet[R],
        request: Request,
        *,
        order: Order,
        show: Callable[[R], Any],
    ) -> Response:
        """Return one page of `queryset`, each row through `show`.

        Raises:
            ValidationError: `limit` or `cursor` is malformed.
        """
        limit = _limit(request.query_params.get("limit"))
        cursor = request.query_params.get("cursor")
        if cursor is not None:
            queryset = queryset.filter(_after(order, _decode(cursor, order)))
        sign = "-" if order.newest_first else ""
        rows = list(queryset.order_by(*(sign + column for column in order.columns))[: limit + 1])
        has_more = len(rows) > limit
        rows = rows[:limit]
        return Response(
            {
                "object": "list",
                "data": [show(row) for row in rows],
                "has_more": has_more,
                "next_cursor": _encode(rows[-1], order) if has_more else None,
            }
        )

    def paginate_queryset(self, queryset: Any, request: Request, view: Any = None) -> list[Any] | None:
        """Refuse: a page needs an order, see `page`."""
        raise NotImplementedError("call `page` with an Order")

    def get_schema_operation_parameters(self, view: Any) -> list[dict[str, Any]]:
        """Describe `limit` and `cursor` for OpenAPI."""
        limit = {"type": "integer", "minimum": 1, "maximum": MOST, "default": DEFAULT_LIMIT}
        return [
            {"name": "limit", "in": "query", "required": False, "schema": limit},
            {"name": "cursor", "in": "query", "required": False, "schema": {"type": "string"}},
        ]


def _limit(raw: str | None) -> int:
    if raw is None:
        return DEFAULT_LIMIT
    if not (raw.isascii() and raw.isdigit() and len(raw) < 10 and 1 <= int(raw) <= MOST):
        raise ValidationError({"limit": f"limit must be a whole number from 1 to {MOST}."})
    return int(raw)


def _after(order: Order, place: list[Part]) -> Q:
    """Return the condition for rows behind `place`: the first differing column decides."""
    behind = "lt" if order.newest_first else "gt"
    condition = Q()
    for n, column in enumerate(order.columns):
        equal = dict(zip(order.columns[:n], place, strict=False))
        condition |= Q(**equal, **{f"{column}__{behind}": place[n]})
    # Implied by the above, and what lets Postgres start in the middle of the index.
    return condition & Q(**{f"{order.columns[0]}__{behind}e": place[0]})


def _encode(row: Model, order: Order) -> str:
    values: list[str | int] = []
    for column in order.columns:
        value: Any = row
        for name in column.split("__"):
            value = getattr(value, name)
        values.append(value.isoformat() if isinstance(value, datetime) else value if type(value) is int else str(value))
    return base64.urlsafe_b64encode(json.dumps(values).encode()).decode().rstrip("=")


def _decode(cursor: str, order: Order) -> list[Part]:
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        values = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
        if not isinstance(values, list) or len(values) != len(order.kinds):
            raise ValueError("another order")
        return [_part(value, kind) for value, kind in zip(values, order.kinds, strict=True)]
    except (ValueError, TypeError, OverflowError, RecursionError, binascii.Error) as error:
        raise ValidationError({"cursor": "cursor must be a `next_cursor` that this list gave out."}) from error


def _part(value: object, kind: type[Part]) -> Part:
    if kind is int:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
            raise ValueError("no id")
        return value
    if not isinstance(value, str) or "\0" in value or len(value) > 300:
        raise ValueError("no text")
    value.encode()  # half a surrogate pair is a ValueError
    if kind is datetime:
        moment = datetime.fromisoformat(value)
        if moment.tzinfo is None:
            raise ValueError("no time zone")
        return moment
    return uuid.UUID(value) if kind is uuid.UUID else value
