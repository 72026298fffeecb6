"""Order of service: classes with ageing, and between tenants virtual counters of weighted service.

    counter += (prefill tokens + 2 · output tokens) / weight

The tenant with the lowest counter goes first ("Fairness in Serving Large Language Models", Sheng et al., 2024: VTC).
A tenant that wakes is lifted to the lowest counter of those that are busy: idling saves up no claim on the future.
"""

from collections.abc import Iterable

from engine.request import Priority
from engine.scheduler.sequence import SequenceState
from engine.scheduler.tenant import Tenant

AGEING_SECONDS = 2.0  # a tenant's line that was not served for this long moves up one class, and another, to the first
RANK = {Priority.INTERACTIVE: 0, Priority.STANDARD: 1, Priority.BATCH: 2}


def class_rank(asked: Priority, allowed: Priority) -> int:
    """Return the rank of a request: a tenant cannot ask for a better class than its policy gives."""
    return max(RANK[asked], RANK[allowed])


def effective_rank(sequence: SequenceState, now: float) -> int:
    """Return the rank after ageing.

    What ages is the tenant's line of that class, not the request: a tenant with a long backlog has many old requests,
    and they must not go before the fresh ones of a tenant that has had less service.
    """
    if sequence.rank == 0:
        return 0
    since = max(sequence.tenant.lines[sequence.rank].served_at, sequence.request.arrived_at)
    return max(0, sequence.rank - int((now - since) / AGEING_SECONDS))


def lift(tenant: Tenant, busy: Iterable[Tenant], floor: float) -> None:
    """Lift a waking tenant's counter to the lowest of the busy ones, or to `floor` when nobody is busy."""
    tenant.counter = max(tenant.counter, min((other.counter for other in busy), default=floor))


def first_waiting(tenant: Tenant, now: float) -> SequenceState | None:
    """Return the tenant's own next sequence: best class after ageing, then arrival."""
    best: SequenceState | None = None
    best_key = (0, 0)
    for line in tenant.lines:
        head = line.head()
        if head is not None:
            key = (effective_rank(head, now), head.number)
            if best is None or key < best_key:
                best, best_key = head, key
    return best
