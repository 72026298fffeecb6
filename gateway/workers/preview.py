"""What a change of a tenant's policy would have done: each live worker replays its own last minutes, side by side.

    preview(tenant_id=..., changes={"kv_hard_bytes": 1 << 28}) ─▶ PreviewView

Nothing is written and nothing changes. Blocking, for a second or two: call it from a synchronous view.
"""

import time
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import grpc
import structlog

from engine.protocol import pb, rpc
from gateway.config import config
from gateway.controller.grants import by_pools, divide_policy
from gateway.controller.holders import TenantGrant
from gateway.controller.messages import tenant_policy
from gateway.workers.client import Dial
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
_OPTIONS = [
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", 64 << 20),
]

log = structlog.get_logger("gateway.workers")


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
    calls: list[tuple[WorkerView, grpc.Channel, grpc.CallFuture[pb.PreviewReport]]] = []
    try:
        for worker in listed:
            current, wanted = before[worker.worker_id], after[worker.worker_id]
            assert isinstance(current, TenantGrant) and isinstance(wanted, TenantGrant), "a tenant's policy"
            request = pb.PreviewRequest(
                tenants=[tenant_policy(proposal.tenant_id, wanted)],
                current=[tenant_policy(proposal.tenant_id, current)],
                seconds=seconds,
            )
            channel = _open(worker.address)
            stub = rpc.EngineStub(channel)  # type: ignore[no-untyped-call]  # generated code
            metadata = (("authorization", f"Bearer {config().engine_token}"),)
            calls.append((worker, channel, stub.Preview.future(request, metadata=metadata, timeout=TIMEOUT_SECONDS)))
        return [_answer(worker, call) for worker, _, call in calls]
    finally:
        for _, channel, _ in calls:
            channel.close()


def _answer(worker: WorkerView, call: "grpc.CallFuture[pb.PreviewReport]") -> WorkerAnswer:
    try:
        return WorkerAnswer(worker, call.result(), "")
    except grpc.RpcError:
        status, details = call.code(), call.details() or ""
    log.warning("preview_unanswered", worker=worker.worker_id, status=status.name, details=details)
    if status is grpc.StatusCode.UNAVAILABLE:
        return WorkerAnswer(worker, None, "it cannot be reached")
    if status is grpc.StatusCode.UNIMPLEMENTED:
        return WorkerAnswer(worker, None, "it runs an older version, which has no previews")
    return WorkerAnswer(worker, None, details or status.name)


def _open(address: str) -> grpc.Channel:
    dial = Dial(address=address, token=config().engine_token, ca_file=config().engine_ca)
    if dial.ca_file and not address.startswith("unix:"):  # a unix socket does not leave the machine
        credentials = grpc.ssl_channel_credentials(Path(dial.ca_file).read_bytes())
        return grpc.secure_channel(address, credentials, options=_OPTIONS)
    return grpc.insecure_channel(address, options=_OPTIONS)
