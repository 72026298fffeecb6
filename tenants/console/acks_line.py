"""How far a version has come, as the line "saved → sent → applied on 1/1 workers in 38 ms → settled" shows it."""

from dataclasses import dataclass

from django.utils import timezone

from tenants.contracts import PolicyAcks

FOLLOWED_SECONDS = 120.0  # a version that has not settled by then is not asked about any more


@dataclass(frozen=True, slots=True, kw_only=True)
class AcksLine:
    """What the line shows beside the acks themselves. Bytes and times are of the workers that have not settled."""

    is_applied: bool
    is_settled: bool
    settled_ms: float  # from the commit of the version, of the slowest that has settled
    over_bytes: int  # above the limits when the version was applied
    settle_ms: float  # how long the slowest thought that it would take from then on
    is_done: bool  # nothing more is to come


def acks_line(acks: PolicyAcks) -> AcksLine:
    """Return what the line shows."""
    waited = (timezone.now() - acks.changed_at).total_seconds()
    times = [(ack.settled_at - acks.changed_at).total_seconds() for ack in acks.workers if ack.settled_at is not None]
    unsettled = [ack for ack in acks.workers if ack.settled_at is None]
    is_applied = acks.applied == acks.of
    is_settled = is_applied and acks.settled == acks.of
    return AcksLine(
        is_applied=is_applied,
        is_settled=is_settled,
        settled_ms=max(times, default=0.0) * 1000,
        over_bytes=sum(ack.over_bytes for ack in unsettled),
        settle_ms=max((ack.settle_seconds for ack in unsettled), default=0.0) * 1000,
        is_done=is_settled or (is_applied and waited > FOLLOWED_SECONDS),
    )
