"""Insert usage records: each request once, however often it is delivered."""

import math
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime

import structlog
from django.db import connection, transaction
from django.utils import timezone

from tenants.contracts import UsageEntry
from tenants.models import UsageRecord

_BATCH = 500
_MOST = (1 << 63) - 1
_LATEST = datetime(9000, 1, 1, tzinfo=UTC).timestamp()
_COLUMNS = tuple(str(field.column) for field in UsageRecord._meta.concrete_fields)
NOBODY = uuid.UUID(
    int=0
)  # a record whose tenant is no id is kept under this one: a meter's reading is never thrown away

Value = str | int | float | datetime | uuid.UUID | None  # what a column takes

log = structlog.get_logger(__name__)


def record_usage(records: Sequence[UsageEntry]) -> int:
    """Insert `records` in one transaction and return how many were new.

    A record that the database already has is left as it is. Text that Postgres cannot hold is cut to what it can, so
    that no client-chosen session name can stop a worker's journal.
    """
    values = {entry.request_id: _row(entry) for entry in records}
    ordered = [values[key] for key in sorted(values)]  # one order for all writers: no deadlock between two controllers
    with transaction.atomic():
        return sum(_insert(ordered[start : start + _BATCH]) for start in range(0, len(ordered), _BATCH))


def _insert(batch: list[tuple[Value, ...]]) -> int:
    row = f"({', '.join(['%s'] * len(_COLUMNS))})"
    statement = (
        f"INSERT INTO {UsageRecord._meta.db_table} ({', '.join(_COLUMNS)})"  # noqa: S608  # names of our own model
        f" VALUES {', '.join([row] * len(batch))} ON CONFLICT (request_id) DO NOTHING"
    )
    with connection.cursor() as cursor:
        cursor.execute(statement, [value for values in batch for value in values])
        return int(cursor.rowcount)


def _row(entry: UsageEntry) -> tuple[Value, ...]:
    by_column: dict[str, Value] = {
        "request_id": _text(entry.request_id, 128),
        "tenant_id": _uuid(entry.tenant_id) or _nobody(entry),
        "project_id": _uuid(entry.project_id),
        "key_id": _text(entry.key_id, 32),
        "session": _text(entry.session, 256),
        "model": _text(entry.model, 200),
        "worker_id": _text(entry.worker_id, 100),
        "prompt_tokens": _count(entry.prompt_tokens),
        "cached_tokens": _count(entry.cached_tokens),
        "completion_tokens": _count(entry.completion_tokens),
        "kv_device_byte_seconds": _amount(entry.kv_device_byte_seconds),
        "queue_seconds": _amount(entry.queue_seconds),
        "ttft_seconds": _amount(entry.ttft_seconds),
        "started_at": _moment(entry.started_at),
        "finished_at": _moment(entry.finished_at),
        "finish_reason": _text(entry.finish_reason, 16),
        "num_preemptions": min(_count(entry.num_preemptions), (1 << 31) - 1),
        "recorded_at": timezone.now(),
    }
    return tuple(by_column[column] for column in _COLUMNS)


def _text(value: str, longest: int) -> str:
    return value.encode("utf-8", "replace").decode().replace("\0", "")[:longest]


def _uuid(value: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(value)
    except ValueError:
        return None


def _nobody(entry: UsageEntry) -> uuid.UUID:
    log.error("usage_without_tenant", request_id=_text(entry.request_id, 128), worker_id=_text(entry.worker_id, 100))
    return NOBODY


def _count(value: int) -> int:
    return min(max(value, 0), _MOST)


def _amount(value: float) -> float:
    return max(value, 0.0) if math.isfinite(value) else 0.0


def _moment(unix_seconds: float) -> datetime:
    if not math.isfinite(unix_seconds):
        return datetime.fromtimestamp(0, UTC)
    return datetime.fromtimestamp(min(max(unix_seconds, 0.0), _LATEST), UTC)
