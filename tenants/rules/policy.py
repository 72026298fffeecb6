"""What a policy may be: ranges, soft within hard, and guarantees that fit the pool."""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from tenants.contracts import PolicyView, PriorityName, ShadowLimits
from tenants.errors import Invalid, PolicyInvalid
from tenants.rules import values

LOW_WATERMARK = 0.90  # of the pool; what is above is the reserve from which borrowers finish
MOST_BYTES = 1 << 60
MOST_COUNT = (1 << 31) - 1
# Service is counted in tokens ÷ weight: with a weight near 0 one token would outweigh all that others ever get.
LEAST_WEIGHT, MOST_WEIGHT = 0.001, 1000.0

PRIORITIES: tuple[PriorityName, ...] = ("interactive", "standard", "batch")
_WHOLE: dict[str, tuple[int, int]] = {
    "kv_soft_bytes": (0, MOST_BYTES),
    "kv_hard_bytes": (1, MOST_BYTES),
    "max_running": (1, 1_000_000),
    "max_queued": (0, 1_000_000),
    "rpm": (0, MOST_COUNT),
    "tpm": (0, MOST_COUNT),
    "max_context": (1, MOST_COUNT),
    "max_output": (1, MOST_COUNT),
    "host_bytes": (0, MOST_BYTES),
    "disk_bytes": (0, MOST_BYTES),
}
FIELDS: tuple[str, ...] = ("weight", *_WHOLE, "encrypt_disk", "priority", "share_group", "shadow")
OWNER_FIELDS: tuple[str, ...] = (
    "encrypt_disk",
)  # a tenant's owner may change these too; they take nothing from others
SHADOW_FIELDS: tuple[str, ...] = ShadowLimits.__struct_fields__

DEFAULT = PolicyView(
    version=0,
    weight=1.0,
    kv_soft_bytes=0,
    kv_hard_bytes=256 << 20,
    max_running=32,
    max_queued=256,
    rpm=0,
    tpm=0,
    max_context=8192,
    max_output=4096,
    priority="standard",
    host_bytes=1 << 30,
    disk_bytes=2 << 30,
)


def changed(current: PolicyView, changes: Mapping[str, object]) -> PolicyView:
    """Return `current` with `changes` applied, whatever types a caller sent.

    `shadow` names the limits on trial that change: null takes one off, and all where it stands for the whole.

    Raises:
        PolicyInvalid: an unknown field, a wrong type, a value out of range, or soft above hard.
    """
    checked: dict[str, Any] = {
        field: _check_shadow(current.shadow, value) if field == "shadow" else _check(field, value)
        for field, value in changes.items()
    }
    after = msgspec.structs.replace(current, **checked)
    if after.kv_soft_bytes > after.kv_hard_bytes:
        field: Literal["kv_soft_bytes", "kv_hard_bytes"] = (
            "kv_soft_bytes" if "kv_soft_bytes" in changes else "kv_hard_bytes"
        )
        raise PolicyInvalid(
            field,
            f"kv_soft_bytes ({after.kv_soft_bytes}) must not be above kv_hard_bytes ({after.kv_hard_bytes}): "
            "lower the guarantee or raise the ceiling, in one change if need be",
        )
    return after


def check_guarantees(*, before: int, after: int, others: int, pool: int) -> None:
    """Check that a raised guarantee fits: the sum of all soft limits stays under the pool's low watermark.

    Args:
        before: the tenant's or share group's `kv_soft_bytes` until now. What does not rise is not refused, so that an
            operator can still lower limits after a worker has gone.
        after: the one wanted.
        others: sum of `kv_soft_bytes` of all other tenants and share groups.
        pool: device KV bytes of the live workers; 0, and nothing can be said.
    """
    room = int(pool * LOW_WATERMARK) - others
    if pool and after > before and after > room:
        raise PolicyInvalid(
            "kv_soft_bytes",
            f"kv_soft_bytes ({after}) does not fit: {LOW_WATERMARK:.0%} of the pool of {pool} bytes, less {others} "
            f"guaranteed to others, leaves {max(room, 0)}; lower it, lower another's, or allow overcommit",
        )


def kept_part(guaranteed: int, pool: int) -> float:
    """Return which part of their guarantees owners get: 1 while all fit the pool up to its low watermark, else less.

    Workers scale the guarantees that they are granted alike. So the reserve stays, from which borrowers finish.
    """
    return min(1.0, int(pool * LOW_WATERMARK) / guaranteed) if guaranteed and pool else 1.0


def _check(field: str, value: object) -> float | str | bool:
    try:
        if field in _WHOLE:
            low, high = _WHOLE[field]
            return values.whole(field, value, low=low, high=high)
        if field == "weight":
            return values.number(field, value, low=LEAST_WEIGHT, high=MOST_WEIGHT)
        if field == "encrypt_disk":
            return values.flag(field, value)
        if field == "priority":
            return values.choice(field, value, PRIORITIES)
        if field == "share_group":  # that there is such a group, the service checks
            return values.text(field, value, longest=40, shortest=0)
    except Invalid as error:
        raise PolicyInvalid(error.field, error.message) from error
    raise PolicyInvalid(field, f"{field} is no field of a policy; there are {', '.join(FIELDS)}")


def _check_shadow(current: ShadowLimits, value: object) -> ShadowLimits:
    if value is None or isinstance(value, ShadowLimits):
        return value or ShadowLimits()
    if not isinstance(value, Mapping):
        raise PolicyInvalid("shadow", f"shadow must be an object of limits on trial: {', '.join(SHADOW_FIELDS)}")
    checked = {field: _check_trial(field, limit) for field, limit in value.items()}
    return msgspec.structs.replace(current, **checked)


def _check_trial(field: str, value: object) -> int | None:
    name = f"shadow.{field}"
    if field not in SHADOW_FIELDS:
        raise PolicyInvalid(name, f"{name} is no limit that can be on trial; there are {', '.join(SHADOW_FIELDS)}")
    if value is None:
        return None
    low, high = _WHOLE[field]
    if field in ("rpm", "tpm"):
        low = 1  # 0, no limit, would try nothing
    try:
        return values.whole(name, value, low=low, high=high)
    except Invalid as error:
        raise PolicyInvalid(error.field, f"{error.message}, or null to end the trial") from error
