"""When the domain's tasks run; celery beat reads it as `CELERY_BEAT_SCHEDULE`. Seconds."""

from typing import TypedDict


class Entry(TypedDict):
    """One line, in the words of django-celery-beat. A run that still waits when the next is due is dropped."""

    task: str
    schedule: float
    options: dict[str, int]


def _every(seconds: float, task: str, package: str = "tenants") -> Entry:
    return {"task": f"{package}.tasks.{task}", "schedule": seconds, "options": {"expire_seconds": int(seconds)}}


CELERY_BEAT_SCHEDULE: dict[str, Entry] = {
    "deliver-erasures": _every(30.0, "deliver_erasures", "gateway"),
    "expire-keys": _every(60.0, "expire_keys"),
    "end-boosts": _every(60.0, "end_boosts"),
    "note-last-use": _every(300.0, "note_last_use"),
    "roll-up-series": _every(300.0, "roll_up_series"),
    "sweep-series": _every(3600.0, "sweep_series"),
    "sweep-outbox": _every(3600.0, "sweep_outbox"),
    "sweep-responses": _every(600.0, "sweep_responses"),
    "sweep-sessions": _every(6 * 3600.0, "sweep_sessions"),
    "train-reuse-predictor": _every(86_400.0, "train_reuse_predictor"),
}
