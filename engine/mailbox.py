"""The core's end of the link to the front: frames of `engine.ipc` to the loop's messages and back.

A frame that cannot be read is logged and left; a request that cannot be understood is refused. Neither ends the loop.
"""

import logging
import math
import time
from collections.abc import Iterable, Sequence

import msgspec
import zmq

from engine import ipc
from engine.loop import Applied, Cancel, Drain, Message, Stop, Submit
from engine.memory.tiers.figures import TrafficCounts
from engine.policy import PolicyUpdate, ShadowLimits, SharedPrefix, ShareGroup, TenantPolicy
from engine.request import (
    BeamParams,
    FinishReason,
    GenerationRequest,
    Grammar,
    GrammarKind,
    Priority,
    RefusalCode,
    RequestId,
    SamplingParams,
    SequenceId,
    TenantId,
)
from engine.scheduler.outputs import OutputExtras, RequestOutput
from engine.scheduler.session_calls import (
    Prefetch,
    SessionAction,
    SessionAnswer,
    SessionChange,
    SessionQuery,
    SessionView,
)
from engine.stats import EngineStats, PairCost, TenantUse

log = logging.getLogger(__name__)

_NO_EXTRAS = OutputExtras()

SECRET_BYTES = 32
_MAX_FRAMES = 4096  # read between two steps: a flood must not keep running requests waiting


class FrameMailbox:
    """Reads and writes frames on a connected PAIR socket. Sends never wait: the socket queues without limit."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket

    def receive(self, timeout: float | None) -> Iterable[Message]:
        """Return what has come, waiting for a first frame up to `timeout` seconds."""
        if timeout != 0 and not self._socket.poll(None if timeout is None else math.ceil(timeout * 1000)):
            return []
        messages: list[Message] = []
        for _ in range(_MAX_FRAMES):
            try:
                frame = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                break
            message = self._read(frame)
            if message is not None:
                messages.append(message)
        return messages

    def ready(self, frame: ipc.ReadyFrame) -> None:
        """Say that the model is loaded."""
        self._send(frame)

    def outputs(self, step: int, outputs: Sequence[RequestOutput]) -> None:
        """Send one frame for all outputs of a step."""
        self._send(ipc.StepFrame(step=step, outputs=[_output(output) for output in outputs]))

    def applied(self, applied: Applied) -> None:
        """Ack a policy."""
        self._send(
            ipc.AppliedFrame(
                version=applied.version,
                epoch=applied.epoch,
                at=time.time(),
                step=applied.step,
                over_bytes=applied.over_bytes,
                settle_seconds=applied.settle_seconds,
            )
        )

    def settled(self, version: int, epoch: int) -> None:
        """Say that a policy has settled."""
        self._send(ipc.SettledFrame(version=version, epoch=epoch, at=time.time()))

    def sessions(self, answer: SessionAnswer) -> None:
        """Answer a call about sessions."""
        self._send(
            ipc.SessionsFrame(
                number=answer.number,
                sessions=[_session(session) for session in answer.sessions],
                num_sessions=answer.num_sessions,
            )
        )

    def stats(self, stats: EngineStats) -> None:
        """Send the counters."""
        self._send(
            ipc.StatsFrame(
                at=time.time(),
                step=stats.step,
                blocks_total=stats.blocks_total,
                blocks_free=stats.blocks_free,
                blocks_open=stats.blocks_open,
                blocks_sealed=stats.blocks_sealed,
                blocks_cached=stats.blocks_cached,
                running=stats.running,
                queued=stats.queued,
                prompt_tokens=stats.prompt_tokens,
                output_tokens=stats.output_tokens,
                num_preemptions=stats.num_preemptions,
                prefix_asked_tokens=stats.prefix_asked_tokens,
                prefix_found_tokens=stats.prefix_found_tokens,
                num_evicted_blocks=stats.num_evicted_blocks,
                tenants=[_use(use) for use in stats.tenants],
                share_groups=[
                    ipc.ShareGroupUse(
                        name=use.name,
                        kv_bytes=use.kv_bytes,
                        kv_peak_bytes=use.kv_peak_bytes,
                        kv_cached_bytes=use.kv_cached_bytes,
                        num_prefixes=use.num_prefixes,
                        prefix_tokens=use.prefix_tokens,
                    )
                    for use in stats.share_groups
                ],
                pressure=_pressure(stats),
                host_bytes_total=stats.host_bytes_total,
                host_bytes_used=stats.host_bytes_used,
                swapped_out_bytes=stats.swapped_out_bytes,
                swapped_in_bytes=stats.swapped_in_bytes,
                interference=[_pair(pair) for pair in stats.interference],
                num_sessions=stats.num_sessions,
                disk_bytes_total=stats.tiers.disk_bytes_total,
                disk_bytes_used=stats.tiers.disk_bytes_used,
                disk_problem=stats.tiers.disk_problem,
                disk_errors=stats.tiers.disk_errors,
                traffic=[_traffic(traffic) for traffic in stats.tiers.traffic],
                tier_hits=dict(stats.tiers.hit_tokens),
                tier_stall_seconds=stats.tiers.stall_seconds,
                prefetched_blocks=stats.tiers.prefetched_blocks,
                prefetched_used_blocks=stats.tiers.prefetched_used_blocks,
                swap_chosen=stats.tiers.swap_chosen,
                recompute_chosen=stats.tiers.recompute_chosen,
            )
        )

    def _send(self, frame: ipc.ToFront) -> None:
        self._socket.send(ipc.encode(frame))

    def _read(self, data: bytes) -> Message | None:
        try:
            frame = ipc.decode_to_core(data)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            log.error("frame_ignored", extra={"error": str(error), "num_bytes": len(data)})
            return None
        try:
            return _message(frame)
        except (ValueError, OverflowError) as error:
            log.error("frame_ignored", extra={"error": str(error), "frame": type(frame).__name__})
            if isinstance(frame, ipc.SubmitFrame):
                self._send(ipc.StepFrame(step=0, outputs=[_refused(frame.handle, str(error))]))
            return None


def _message(frame: ipc.ToCore) -> Message:
    """Turn a frame into the loop's message. Raises ValueError that says what is wrong with it."""
    match frame:
        case ipc.SubmitFrame():
            return Submit(SequenceId(frame.handle), _request(frame))
        case ipc.CancelFrame(handles=handles, reason=reason, index=index):
            stopped = reason == FinishReason.STOP
            ended_as = FinishReason.STOP if stopped else FinishReason.CANCELLED
            output_index = index if index >= 0 else None
            return Cancel(tuple(SequenceId(handle) for handle in handles), ended_as, output_index)
        case ipc.PolicyFrame():
            return PolicyUpdate(
                version=frame.version,
                epoch=frame.epoch,
                snapshot=frame.snapshot,
                tenants=tuple(_policy(tenant) for tenant in frame.tenants),
                removed=tuple(TenantId(name) for name in frame.removed),
                share_groups=tuple(_group(group) for group in frame.share_groups),
                removed_share_groups=tuple(frame.removed_share_groups),
            )
        case ipc.DrainFrame(draining=draining):
            return Drain(draining)
        case ipc.StopFrame():
            return Stop()
        case ipc.PrefetchFrame(tenant=tenant, session=session):
            return Prefetch(tenant=TenantId(tenant), session=session)
        case ipc.SessionQueryFrame(number=number, tenant=tenant, session=session, limit=limit, before=before):
            return SessionQuery(
                number=number, tenant=TenantId(tenant), session=session, limit=max(0, limit), before=before
            )
        case ipc.SessionChangeFrame(number=number, tenant=tenant, session=session, action=action):
            return SessionChange(number=number, tenant=TenantId(tenant), session=session, action=SessionAction(action))


def _request(frame: ipc.SubmitFrame) -> GenerationRequest:
    now = time.monotonic()
    deadline = 0.0
    if frame.deadline:
        if not math.isfinite(frame.deadline):
            raise ValueError("deadline must be unix seconds")
        deadline = max(now, now + frame.deadline - time.time())
    return GenerationRequest(
        request_id=RequestId(frame.request_id),
        tenant=TenantId(frame.tenant),
        namespace=frame.namespace,
        prompt=frame.prompt,
        sampling=SamplingParams(
            max_tokens=frame.max_tokens,
            temperature=frame.temperature,
            top_p=frame.top_p,
            top_k=frame.top_k,
            seed=frame.seed,
            stop_token_ids=frozenset(frame.stop_token_ids),
            ignore_eos=frame.ignore_eos,
            num_logprobs=frame.num_logprobs,
            prompt_logprobs=frame.prompt_logprobs,
            min_p=frame.min_p,
            min_tokens=frame.min_tokens,
            frequency_penalty=frame.frequency_penalty,
            presence_penalty=frame.presence_penalty,
            repetition_penalty=frame.repetition_penalty,
            logit_bias=tuple(frame.logit_bias),
            grammar=Grammar(GrammarKind(frame.grammar_kind), frame.grammar) if frame.grammar_kind else None,
        ),
        priority=Priority(frame.priority),
        session=frame.session,
        session_seconds=_session_seconds(frame.session_seconds),
        deadline=deadline,
        arrived_at=now,
        policy_version=frame.policy_version,
        n=frame.n,
        beams=_beams(frame),
        embed=frame.embed,
    )


def _session_seconds(seconds: float) -> float:
    if not (math.isfinite(seconds) and seconds >= 0):
        raise ValueError(f"session_seconds is {seconds}: it must be a number of seconds, at least 0")
    return seconds


def _beams(frame: ipc.SubmitFrame) -> BeamParams | None:
    if frame.beam_width == 0:
        return None
    return BeamParams(width=frame.beam_width, length_penalty=frame.length_penalty, early_stopping=frame.early_stopping)


def _policy(tenant: ipc.PolicyTenant) -> TenantPolicy:
    if not (math.isfinite(tenant.weight) and tenant.weight > 0):
        raise ValueError(f"weight {tenant.weight} of tenant {tenant.tenant} must be above 0")
    whole = (
        tenant.kv_soft_bytes,
        tenant.kv_hard_bytes,
        tenant.max_running,
        tenant.max_queued,
        tenant.max_context_tokens,
        tenant.max_output_tokens,
        tenant.host_bytes,
        tenant.disk_bytes,
        *(limit for limit in msgspec.structs.astuple(tenant.shadow or ipc.ShadowLimits()) if limit is not None),
    )
    if min(whole) < 0:
        raise ValueError(f"a limit of tenant {tenant.tenant} is below 0")
    if len(tenant.disk_secret) not in (0, SECRET_BYTES):
        raise ValueError(f"the disk secret of tenant {tenant.tenant} is not of {SECRET_BYTES} bytes")
    return TenantPolicy(
        tenant=TenantId(tenant.tenant),
        weight=tenant.weight,
        kv_soft_bytes=tenant.kv_soft_bytes,
        kv_hard_bytes=tenant.kv_hard_bytes,
        max_running=tenant.max_running,
        max_queued=tenant.max_queued,
        max_context_tokens=tenant.max_context_tokens,
        max_output_tokens=tenant.max_output_tokens,
        priority=Priority(tenant.priority),
        share_groups=tuple(tenant.share_groups),
        host_bytes=tenant.host_bytes,
        disk_bytes=tenant.disk_bytes,
        shadow=_shadow(tenant.shadow),
        fleet_hard_bytes=tenant.fleet_hard_bytes,
        fleet_max_running=tenant.fleet_max_running,
        disk_secret=tenant.disk_secret,
        disk_locked=tenant.disk_locked,
    )


def _shadow(limits: ipc.ShadowLimits | None) -> ShadowLimits | None:
    if limits is None:
        return None
    return ShadowLimits(
        kv_hard_bytes=limits.kv_hard_bytes,
        max_running=limits.max_running,
        max_queued=limits.max_queued,
        max_context_tokens=limits.max_context_tokens,
        max_output_tokens=limits.max_output_tokens,
    )


def _group(group: ipc.PolicyShareGroup) -> ShareGroup:
    if min(group.kv_soft_bytes, group.kv_hard_bytes) < 0:
        raise ValueError(f"a limit of share group {group.name} is below 0")
    if not group.namespace:
        raise ValueError(f"share group {group.name} has no namespace")
    prefixes = tuple(
        SharedPrefix(group=group.name, namespace=group.namespace, token_ids=tuple(token_ids))
        for token_ids in group.prefixes
    )
    return ShareGroup(
        name=group.name, kv_soft_bytes=group.kv_soft_bytes, kv_hard_bytes=group.kv_hard_bytes, prefixes=prefixes
    )


def _use(use: TenantUse) -> ipc.TenantUse:
    return ipc.TenantUse(
        tenant=use.tenant,
        kv_bytes=use.kv_bytes,
        kv_peak_bytes=use.kv_peak_bytes,
        kv_cached_bytes=use.kv_cached_bytes,
        kv_borrowed_bytes=use.kv_borrowed_bytes,
        host_bytes=use.host_bytes,
        disk_bytes=use.disk_bytes,
        num_sessions=use.num_sessions,
        running=use.running,
        queued=use.queued,
        oldest_wait_seconds=use.oldest_wait_seconds,
        weight=use.weight,
        output_tokens=use.output_tokens,
        above_soft_seconds=use.above_soft_seconds,
        service=use.service,
        num_preemptions=use.num_preemptions,
        recomputed_tokens=use.recomputed_tokens,
        shadow=[ipc.ShadowCount(limit=one.limit, refused=one.refused, delayed=one.delayed) for one in use.trial],
    )


def _session(view: SessionView) -> ipc.SessionState:
    return ipc.SessionState(
        session=view.session,
        num_tokens=view.num_tokens,
        device_bytes=view.device_bytes,
        host_bytes=view.host_bytes,
        disk_bytes=view.disk_bytes,
        num_turns=view.num_turns,
        created_at=view.created_at,
        last_used_at=view.last_used_at,
        expires_at=view.expires_at,
        pinned=view.pinned,
        active=view.active,
    )


def _pressure(stats: EngineStats) -> ipc.Pressure:
    use, borrowed, wait, swap = stats.pressure
    return ipc.Pressure(score=stats.pressure_score, use=use, borrowed=borrowed, wait=wait, swap=swap)


def _traffic(traffic: TrafficCounts) -> ipc.TierTraffic:
    return ipc.TierTraffic(
        source=traffic.source,
        target=traffic.target,
        blocks=traffic.blocks,
        bytes=traffic.bytes,
        seconds=traffic.seconds,
        latencies=list(traffic.latencies),
    )


def _pair(pair: PairCost) -> ipc.Interference:
    return ipc.Interference(
        by=pair.by,
        of=pair.of,
        cached_blocks=pair.cached_blocks,
        num_preemptions=pair.num_preemptions,
        recomputed_tokens=pair.recomputed_tokens,
        swapped_bytes=pair.swapped_bytes,
    )


def _output(output: RequestOutput) -> ipc.Output:
    refusal, extras = output.refusal, output.extras or _NO_EXTRAS
    return ipc.Output(
        handle=output.sequence,
        index=output.output_index,
        cached_tokens=output.cached_tokens,
        admitted_max_tokens=output.admitted_max_tokens,
        token_ids=list(output.token_ids),
        finish_reason=output.finish_reason or "",
        refusal_code=refusal.code if refusal is not None else "",
        message=refusal.message if refusal is not None else output.message,
        field=refusal.field if refusal is not None else output.field,
        queue_seconds=output.queue_seconds,
        kv_byte_seconds=output.kv_byte_seconds,
        num_preemptions=output.num_preemptions,
        logprobs=list(output.logprobs),
        unseen_tokens=output.unseen_tokens,
        score=output.score,
        top=[list(one) for one in extras.top],
        prompt_scores=[(one.chosen, list(one.top)) for one in extras.prompt],
        embedding=list(extras.embedding),
    )


def _refused(handle: int, message: str) -> ipc.Output:
    return ipc.Output(handle=handle, refusal_code=RefusalCode.INVALID, message=message)
