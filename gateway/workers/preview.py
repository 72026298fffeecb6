"""What a change of a tenant's policy would have done: each live worker replays its own last minutes, side by side.

    preview(tenant_id=..., changes={"kv_hard_bytes": 1 << 28}) ─▶ PreviewView

Nothing is written and nothing changes. Blocking, for a second or two: call it from a synchronous view.
"""

import time
import uuid
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from engine.protocol import pb
from gateway.controller.grants import by_pools, divide_policy
from gateway.controller.holders import TenantGrant
from gateway.controller.messages import tenant_policy
from gateway.workers import calls
from gateway.workers.preview_merge import WorkerAnswer, merge
from tenants import rows, selectors
from tenants.contracts import PolicyView, WorkerView
from tenants.errors import NotFound, PolicyInvalid
from tenants.models import Policy
from tenants.reports import PreviewView
from tenants.rules import policy as rules
from tenants.services.policy import check

SECONDS = 900.0  # of the trace that is replayed
TIMEOUT_SECONDS = 12.0  # a worker gives up after 10


class PreviewUnavailable(Exception):
    """No worker has answered; the message says why."""


class Proposal(NamedTuple):
    """A tenant's policy as it is, and as it would be."""

    tenant_id: str
    before: PolicyView
    after: PolicyView


def preview(
    *,
    tenant_id: uuid.UUID | str,
    changes: Mapping[str, object],
    overcommit: bool = False,
    seconds: float = SECONDS,
) -> PreviewView:
    """Return what some changes of a tenant's policy would have done to the last minutes' requests.

    Args:
        tenant_id: the tenant.
        changes: fields of `PolicyView` and their new values, of any type a client may have sent.
        overcommit: as for `set_policy`.
        seconds: of the workers' traces, from now back.

    Raises:
        PolicyInvalid: names the field and the fix; what `set_policy` would say of the same changes.
        NotFound: there is no such tenant.
        PreviewUnavailable: no worker has answered.
    """
    began = time.monotonic()
    proposal = propose(tenant_id=tenant_id, changes=changes, overcommit=overcommit)
    workers = selectors.live_workers()
    if not workers:
        raise PreviewUnavailable("No worker is live, so there is nothing to replay. See /api/v1/workers/.")
    answers = ask(workers, proposal, seconds)
    if all(answer.report is None for answer in answers):
        reasons = "; ".join(f"{answer.worker.worker_id}: {answer.problem}" for answer in answers)
        raise PreviewUnavailable(f"No worker has answered. {reasons}")
    tenants = {tenant.id: tenant for tenant in selectors.tenants()}
    return merge(proposal.before, proposal.after, answers, tenants, elapsed_seconds=time.monotonic() - began)


def propose(*, tenant_id: uuid.UUID | str, changes: Mapping[str, object], overcommit: bool) -> Proposal:
    """Return a policy before and after changes that would be allowed. Raises as `preview`."""
    if not changes:
        raise PolicyInvalid("", f"name at least one field to change: {', '.join(rules.FIELDS)}")
    row = Policy.objects.for_tenant(tenant_id).first()
    if row is None:
        raise NotFound("there is no such tenant")
    before = rows.policy_view(row)
    after = rules.changed(before, changes)
    check(row, after, overcommit=overcommit)
    return Proposal(str(row.tenant_id), before, after)


def ask(workers: Iterable[WorkerView], proposal: Proposal, seconds: float) -> list[WorkerAnswer]:
    """Let all workers replay at once; return what each has answered, or why it has not."""
    listed = list(workers)
    pools = by_pools({worker.worker_id: worker.kv_bytes for worker in listed})
    before, after = divide_policy(proposal.before, pools), divide_policy(proposal.after, pools)
    requests: list[tuple[WorkerView, pb.PreviewRequest]] = []
    for worker in listed:
        current, wanted = before[worker.worker_id], after[worker.worker_id]
        assert isinstance(current, TenantGrant) and isinstance(wanted, TenantGrant), "a tenant's policy"
        request = pb.PreviewRequest(
            tenants=[tenant_policy(proposal.tenant_id, wanted)],
            current=[tenant_policy(proposal.tenant_id, current)],
            seconds=seconds,
        )
        requests.append((worker, request))
    told = calls.ask(requests, "Preview", seconds=TIMEOUT_SECONDS)
    return [WorkerAnswer(one.worker, one.answer, one.problem) for one in told]
