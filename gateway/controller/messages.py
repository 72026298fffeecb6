"""Turn the protocol's messages into the control plane's values and back: pure."""

from engine.protocol import engine_pb2 as pb
from gateway.controller.grants import Grant
from gateway.controller.ledger import Push
from tenants.contracts import PriorityName, TenantUse, UsageEntry, WorkerStats

_PRIORITY: dict[PriorityName, pb.Priority] = {
    "standard": pb.PRIORITY_STANDARD,
    "interactive": pb.PRIORITY_INTERACTIVE,
    "batch": pb.PRIORITY_BATCH,
}
_PRIORITY_NAME = {number: name for name, number in _PRIORITY.items()}
_FINISH_REASON: dict[int, str] = {
    pb.FINISH_REASON_STOP: "stop",
    pb.FINISH_REASON_LENGTH: "length",
    pb.FINISH_REASON_CANCELLED: "cancelled",
}


def policy_push(push: Push) -> pb.ControlCommand:
    """Return a push as a command."""
    version, epoch = push.mark
    tenants = [_tenant_policy(tenant, grant) for tenant, grant in push.grants.items()]
    message = pb.PolicyPush(
        version=version, epoch=epoch, snapshot=push.snapshot, tenants=tenants, removed_tenants=push.removed
    )
    return pb.ControlCommand(policy=message)


def _tenant_policy(tenant: str, grant: Grant) -> pb.TenantPolicy:
    return pb.TenantPolicy(
        tenant=tenant,
        weight=grant.weight,
        kv_soft_bytes=grant.kv_soft_bytes,
        kv_hard_bytes=grant.kv_hard_bytes,
        max_running=grant.max_running,
        max_queued=grant.max_queued,
        max_context_tokens=grant.max_context,
        max_output_tokens=grant.max_output,
        priority=_PRIORITY[grant.priority],
    )


def grants_of(hello: pb.Hello) -> dict[str, Grant]:
    """Return the grants that a worker says it holds."""
    return {
        policy.tenant: Grant(
            weight=policy.weight,
            kv_soft_bytes=policy.kv_soft_bytes,
            kv_hard_bytes=policy.kv_hard_bytes,
            max_running=policy.max_running,
            max_queued=policy.max_queued,
            max_context=policy.max_context_tokens,
            max_output=policy.max_output_tokens,
            priority=_PRIORITY_NAME.get(policy.priority, "standard"),
        )
        for policy in hello.grants
    }


def worker_stats(worker_id: str, stats: pb.Stats) -> WorkerStats:
    """Return a worker's stats as dashboards get them."""
    return WorkerStats(
        worker_id=worker_id,
        at=stats.at,
        core_ready=stats.core_ready,
        applied_version=stats.applied_version,
        blocks_total=stats.blocks_total,
        blocks_free=stats.blocks_free,
        blocks_cached=stats.blocks_cached,
        block_bytes=stats.block_bytes,
        running=stats.running,
        queued=stats.queued,
        prompt_tokens_per_second=stats.prompt_tokens_per_second,
        output_tokens_per_second=stats.output_tokens_per_second,
        num_preemptions=stats.num_preemptions,
        tenants=tuple(
            TenantUse(
                tenant_id=use.tenant,
                kv_bytes=use.kv_bytes,
                kv_peak_bytes=use.kv_peak_bytes,
                kv_cached_bytes=use.kv_cached_bytes,
                running=use.running,
                queued=use.queued,
                output_tokens_per_second=use.output_tokens_per_second,
            )
            for use in stats.tenants
        ),
    )


def usage_entry(worker_id: str, record: pb.UsageRecord) -> UsageEntry:
    """Return a usage record as the ledger takes it. A finish reason that is not known here counts as an error."""
    return UsageEntry(
        request_id=record.request_id,
        tenant_id=record.tenant,
        project_id=record.project,
        key_id=record.key,
        session=record.session,
        model=record.model,
        worker_id=record.worker_id or worker_id,
        prompt_tokens=record.prompt_tokens,
        cached_tokens=record.cached_tokens,
        completion_tokens=record.completion_tokens,
        kv_device_byte_seconds=record.kv_device_byte_seconds,
        queue_seconds=record.queue_seconds,
        ttft_seconds=record.ttft_seconds,
        started_at=record.started_at,
        finished_at=record.finished_at,
        finish_reason=_FINISH_REASON.get(record.finish_reason, "error"),
        num_preemptions=record.num_preemptions,
    )
