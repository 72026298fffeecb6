"""What a share group may be."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tenants.errors import Invalid
from tenants.rules import values
from tenants.rules.policy import MOST_BYTES

FIELDS = ("description", "kv_soft_bytes", "kv_hard_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFields:
    """What of a share group changes. Bytes are device KV, fleet-wide."""

    description: str = ""
    kv_soft_bytes: int = 0
    kv_hard_bytes: int = 256 << 20


def changed(current: GroupFields, changes: Mapping[str, object]) -> GroupFields:
    """Return `current` with `changes` applied, whatever types a caller sent.

    Raises:
        Invalid: an unknown field, a wrong type, a value out of range, or soft above hard.
    """
    checked: dict[str, Any] = {field: _check(field, value) for field, value in changes.items()}
    after = replace(current, **checked)
    if after.kv_soft_bytes > after.kv_hard_bytes:
        raise Invalid(
            "kv_soft_bytes" if "kv_soft_bytes" in changes else "kv_hard_bytes",
            f"kv_soft_bytes ({after.kv_soft_bytes}) must not be above kv_hard_bytes ({after.kv_hard_bytes}): "
            "lower the guarantee or raise the ceiling, in one change if need be",
        )
    return after


def _check(field: str, value: object) -> str | int:
    if field == "description":
        return values.text(field, value, longest=500, shortest=0)
    if field == "kv_soft_bytes":
        return values.whole(field, value, low=0, high=MOST_BYTES)
    if field == "kv_hard_bytes":
        return values.whole(field, value, low=1, high=MOST_BYTES)
    raise Invalid(field, f"{field} is no field of a share group that changes; there are {', '.join(FIELDS)}")
