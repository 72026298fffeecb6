"""Turn the protocol's messages into the control plane's values and back: pure."""

from engine.protocol import engine_pb2 as pb
from gateway.controller.books import Push
from gateway.controller.holders import (
    NO_TRIAL,
    Grant,
    GroupGrant,
    Holder,
    ShadowGrant,
    TenantGrant,
    share_group,
    tenant,
)
from tenants.contracts import PriorityName, UsageEntry
from tenants.reports import InterferencePair, Pressure, ShadowCount, ShareGroupUse, TenantUse, TierTraffic, WorkerStats

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
    command = pb.ControlCommand(policy=pb.PolicyPush(version=version, epoch=epoch, snapshot=push.snapshot))
    message = command.policy
    for holder, grant in push.grants.items():
        if isinstance(grant, TenantGrant):
            message.tenants.append(tenant_policy(holder.name, grant))
        else:
            _write_share_group(message.share_groups.add(), holder.name, grant)
    message.removed_tenants.extend(holder.name for holder in push.removed if holder.kind == "tenant")
    message.removed_share_groups.extend(holder.name for holder in push.removed if holder.kind == "share_group")
    return command


def tenant_policy(tenant_id: str, grant: TenantGrant) -> pb.TenantPolicy:
    """Return a tenant's grant as a message."""
    return pb.TenantPolicy(
        tenant=tenant_id,
        weight=grant.weight,
        kv_soft_bytes=grant.kv_soft_bytes,
        kv_hard_bytes=grant.kv_hard_bytes,
        max_running=grant.max_running,
        max_queued=grant.max_queued,
        max_context_tokens=grant.max_context,
        max_output_tokens=grant.max_output,
        priority=_PRIORITY[grant.priority],
        share_groups=grant.share_groups,
        host_bytes=grant.host_bytes,
        disk_bytes=grant.disk_bytes,
        shadow=_shadow_limits(grant.shadow) if grant.shadow != NO_TRIAL else None,
        fleet_hard_bytes=grant.fleet_hard_bytes,
        fleet_max_running=grant.fleet_max_running,
        disk_secret=grant.disk_secret,
    )


def _shadow_limits(shadow: ShadowGrant) -> pb.ShadowLimits:
    return pb.ShadowLimits(
        kv_hard_bytes=shadow.kv_hard_bytes,
        max_running=shadow.max_running,
        max_queued=shadow.max_queued,
        max_context_tokens=shadow.max_context,
        max_output_tokens=shadow.max_output,
    )


def _shadow_grant(limits: pb.ShadowLimits) -> ShadowGrant:
    told = {field.name: value for field, value in limits.ListFields()}
    return ShadowGrant(
        kv_hard_bytes=told.get("kv_hard_bytes"),
        max_running=told.get("max_running"),
        max_queued=told.get("max_queued"),
        max_context=told.get("max_context_tokens"),
        max_output=told.get("max_output_tokens"),
    )


def _write_share_group(message: pb.ShareGroup, name: str, grant: GroupGrant) -> None:
    # In place: a message that is built apart and then put into another is copied, and there may be megabytes of ids.
    message.name, message.namespace = name, grant.namespace
    message.kv_soft_bytes, message.kv_hard_bytes = grant.kv_soft_bytes, grant.kv_hard_bytes
    for prefix in grant.prefixes:
        message.prefixes.add(id=prefix.id).token_ids.extend(prefix.token_ids)


def grants_of(hello: pb.Hello) -> dict[Holder, Grant]:
    """Return the grants that a worker says it holds; of share groups it tells the limits alone."""
    tenants: dict[Holder, Grant] = {
        tenant(policy.tenant): TenantGrant(
            weight=policy.weight,
            kv_soft_bytes=policy.kv_soft_bytes,
            kv_hard_bytes=policy.kv_hard_bytes,
            max_running=policy.max_running,
            max_queued=policy.max_queued,
            max_context=policy.max_context_tokens,
            max_output=policy.max_output_tokens,
            priority=_PRIORITY_NAME.get(policy.priority, "standard"),
            share_groups=tuple(policy.share_groups),
            host_bytes=policy.host_bytes,
            disk_bytes=policy.disk_bytes,
            shadow=_shadow_grant(policy.shadow),
            fleet_hard_bytes=policy.fleet_hard_bytes,
            fleet_max_running=policy.fleet_max_running,
            disk_secret=policy.disk_secret,
        )
        for policy in hello.grants
    }
    groups: dict[Holder, Grant] = {
        share_group(group.name): GroupGrant(
            namespace=b"", kv_soft_bytes=group.kv_soft_bytes, kv_hard_bytes=group.kv_hard_bytes
        )
        for group in hello.share_groups
    }
    return tenants | groups


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
                kv_borrowed_bytes=use.kv_borrowed_bytes,
                host_bytes=use.host_bytes,
                above_soft_seconds=use.above_soft_seconds,
                service=use.service,
                num_preemptions=use.num_preemptions,
                recomputed_tokens=use.recomputed_tokens,
                output_tokens=use.output_tokens,
                shadow=tuple(_shadow_count(count) for count in use.shadow),
                oldest_wait_seconds=use.oldest_wait_seconds,
                weight=use.weight or 1.0,
                disk_bytes=use.disk_bytes,
                num_sessions=use.num_sessions,
            )
            for use in stats.tenants
        ),
        share_groups=tuple(
            ShareGroupUse(
                name=use.name,
                kv_bytes=use.kv_bytes,
                kv_peak_bytes=use.kv_peak_bytes,
                kv_cached_bytes=use.kv_cached_bytes,
                num_prefixes=use.num_prefixes,
                prefix_tokens=use.prefix_tokens,
            )
            for use in stats.share_groups
        ),
        core_started_at=stats.core_started_at,
        pressure=_pressure(stats.pressure),
        host_bytes_total=stats.host_bytes_total,
        host_bytes_used=stats.host_bytes_used,
        swapped_out_bytes=stats.swapped_out_bytes,
        swapped_in_bytes=stats.swapped_in_bytes,
        interference=tuple(_pair(pair) for pair in stats.interference),
        disk_bytes_total=stats.disk_bytes_total,
        disk_bytes_used=stats.disk_bytes_used,
        disk_problem=stats.disk_problem,
        disk_errors=stats.disk_errors,
        prefix_asked_tokens=stats.prefix_asked_tokens,
        prefix_found_tokens=stats.prefix_found_tokens,
        traffic=tuple(_traffic(traffic) for traffic in stats.traffic),
        tier_hits={hits.tier: hits.tokens for hits in stats.tier_hits},
        tier_stall_seconds=stats.tier_stall_seconds,
        prefetched_blocks=stats.prefetched_blocks,
        prefetched_used_blocks=stats.prefetched_used_blocks,
        swap_chosen=stats.swap_chosen,
        recompute_chosen=stats.recompute_chosen,
        num_sessions=stats.num_sessions,
    )


def _traffic(traffic: pb.TierTraffic) -> TierTraffic:
    return TierTraffic(
        source=traffic.source,
        target=traffic.target,
        blocks=traffic.blocks,
        bytes=traffic.bytes,
        seconds=traffic.seconds,
        latencies=tuple(traffic.latencies),
    )


def _pressure(pressure: pb.Pressure) -> Pressure:
    return Pressure(
        score=pressure.score, use=pressure.use, borrowed=pressure.borrowed, wait=pressure.wait, swap=pressure.swap
    )


def _pair(pair: pb.Interference) -> InterferencePair:
    return InterferencePair(
        by=pair.by,
        of=pair.of,
        cached_blocks=pair.cached_blocks,
        num_preemptions=pair.num_preemptions,
        recomputed_tokens=pair.recomputed_tokens,
        swapped_bytes=pair.swapped_bytes,
    )


def _shadow_count(count: pb.ShadowCount) -> ShadowCount:
    limit = count.limit.removesuffix("_tokens")  # a policy's name for what a worker counts in tokens
    return ShadowCount(limit=limit, refused=count.refused, delayed=count.delayed)


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
