"""The what-if preview: checks a proposal, lets a helper process replay the trace, and puts its report into a message.

The helper (`python -m engine.replay`) runs only on processor time that nobody wants. It is killed when the client
leaves or the time is over, and ends with this process. One preview at a time: two would halve each other.
"""

import asyncio
import math
import time
from collections.abc import Mapping
from pathlib import Path

import grpc
import msgspec
import structlog

from engine.front.helper import HELPER_COMMAND, Helper, HelperFailed
from engine.front.policies import PolicyBook, policy_frame
from engine.protocol import pb
from engine.replay.task import Figures, GroupLimits, Outcome, Report, Task, decode_report, encode

DEADLINE_SECONDS = 10.0
MOST_PROPOSED = 10_000

_DIVIDED = {  # limits that are divided among workers, and the most that a message can say
    "kv_soft_bytes": (1 << 64) - 1,
    "kv_hard_bytes": (1 << 64) - 1,
    "host_bytes": (1 << 64) - 1,
    "disk_bytes": (1 << 64) - 1,
    "max_running": (1 << 32) - 1,
    "max_queued": (1 << 32) - 1,
}

log = structlog.get_logger(part="preview")


class PreviewError(Exception):
    """A preview that is not to be had: `code` is the call's status, the message says why and what to do."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class Previewer:
    """Answers one preview after the other."""

    def __init__(self, trace: Path, grants: PolicyBook, niceness: int) -> None:
        """Replay this ring file, at this niceness; `grants` are in force."""
        self._trace = trace
        self._grants = grants
        self._helper = Helper((*HELPER_COMMAND, str(niceness)))
        self._busy = False

    def start(self) -> None:
        """Start the helper; call it on the event loop."""
        try:
            self._helper.start()
        except HelperFailed as error:  # the next preview tries again, and says so
            log.error("helper_not_started", error=str(error))

    def close(self) -> None:
        """End the helper."""
        self._helper.close()

    async def preview(self, request: pb.PreviewRequest) -> pb.PreviewReport:
        """Replay the trace under the limits in force and under the proposed ones.

        Raises:
            PreviewError: the proposal is malformed, another one is at work, or the helper failed or took too long.
        """
        check(request)
        if self._busy:
            message = "another preview is at work on this worker: ask again in some seconds"
            raise PreviewError(grpc.StatusCode.RESOURCE_EXHAUSTED, message)
        self._busy = True
        began = time.monotonic()
        try:
            report = await asyncio.wait_for(self._replay(request), DEADLINE_SECONDS)
        except TimeoutError:
            message = f"the preview took more than {DEADLINE_SECONDS:g} s: the machine is too busy, ask again later"
            raise PreviewError(grpc.StatusCode.DEADLINE_EXCEEDED, message) from None
        finally:
            self._busy = False
        elapsed = time.monotonic() - began
        log.info("previewed", events=report.num_events, seconds=round(elapsed, 3), problem=report.problem)
        return _message(report, elapsed)

    async def _replay(self, request: pb.PreviewRequest) -> Report:
        tenants, groups = list(self._grants.tenants), list(self._grants.share_groups)
        task = await asyncio.to_thread(self._task, request, tenants, groups)
        try:
            return decode_report(await self._helper.ask(task))
        except (HelperFailed, msgspec.MsgspecError) as error:
            log.error("preview_failed", error=str(error))
            message = "the preview failed; the worker's log has the details"
            raise PreviewError(grpc.StatusCode.INTERNAL, message) from error

    def _task(self, request: pb.PreviewRequest, tenants: list[pb.TenantPolicy], groups: list[pb.ShareGroup]) -> bytes:
        proposed = in_proportion(request, {tenant.tenant: tenant for tenant in tenants})
        return encode(
            Task(
                trace=str(self._trace),
                now=time.time(),
                seconds=request.seconds,
                tenants=policy_frame(pb.PolicyPush(tenants=tenants)).tenants,
                groups=[
                    GroupLimits(name=group.name, kv_soft_bytes=group.kv_soft_bytes, kv_hard_bytes=group.kv_hard_bytes)
                    for group in groups
                ],
                proposed=policy_frame(pb.PolicyPush(tenants=proposed)).tenants,
            )
        )


def check(request: pb.PreviewRequest) -> None:
    """Check a proposal.

    Raises:
        PreviewError: INVALID_ARGUMENT; the message names the field.
    """
    if not (math.isfinite(request.seconds) and request.seconds >= 0):
        raise _invalid("seconds", f"{request.seconds} is no length of time: 0 stands for all that is kept")
    if not request.tenants:
        raise _invalid("tenants", "name at least one tenant whose limits would change")
    if len(request.tenants) > MOST_PROPOSED:
        raise _invalid("tenants", f"{len(request.tenants)} tenants are too many: {MOST_PROPOSED} at most")
    names: set[str] = set()
    for number, tenant in enumerate(request.tenants):
        field = f"tenants[{number}]"
        if not tenant.tenant:
            raise _invalid(f"{field}.tenant", "name the tenant")
        if tenant.tenant in names:
            raise _invalid(f"{field}.tenant", f"{tenant.tenant} is named twice")
        names.add(tenant.tenant)
        if not (math.isfinite(tenant.weight) and tenant.weight > 0):
            raise _invalid(f"{field}.weight", f"{tenant.weight} must be above 0")
        if tenant.kv_soft_bytes > tenant.kv_hard_bytes:
            message = f"{tenant.kv_soft_bytes} must not be above kv_hard_bytes, which is {tenant.kv_hard_bytes}"
            raise _invalid(f"{field}.kv_soft_bytes", message)


def in_proportion(request: pb.PreviewRequest, in_force: Mapping[str, pb.TenantPolicy]) -> list[pb.TenantPolicy]:
    """Return the proposed grants as this worker would get them.

    Grants follow demand, so this worker's may differ from an even division. Where the request says what an even
    division gave before, a limit that the proposal leaves alone stays as it is here, and another changes by the factor.
    """
    divided = {tenant.tenant: tenant for tenant in request.current}
    proposed: list[pb.TenantPolicy] = []
    for tenant in request.tenants:
        here, before = in_force.get(tenant.tenant), divided.get(tenant.tenant)
        wanted = pb.TenantPolicy()
        wanted.CopyFrom(tenant)
        if here is not None and before is not None:
            for name, most in _DIVIDED.items():
                old, new, own = getattr(before, name), getattr(tenant, name), getattr(here, name)
                if old and new != old:
                    own = min(most, -(-new * own // old))  # rounded up: one place is not to become none
                setattr(wanted, name, own if old or new == old else new)
            wanted.kv_soft_bytes = min(wanted.kv_soft_bytes, wanted.kv_hard_bytes)
        proposed.append(wanted)
    return proposed


def _invalid(field: str, message: str) -> PreviewError:
    return PreviewError(grpc.StatusCode.INVALID_ARGUMENT, f"{field}: {message}")


def _message(report: Report, elapsed: float) -> pb.PreviewReport:
    before, after = report.before or _NOTHING, report.after or _NOTHING
    return pb.PreviewReport(
        seconds=report.seconds,
        num_events=report.num_events,
        elapsed_seconds=elapsed,
        tenants=[
            pb.TenantPreview(tenant=name, before=_figures(before.tenants, name), after=_figures(after.tenants, name))
            for name in sorted(before.tenants.keys() | after.tenants.keys())
        ],
        hit_rate_before=before.hit_rate,
        hit_rate_after=after.hit_rate,
        pressure_before=before.pressure,
        pressure_after=after.pressure,
        problem=report.problem,
    )


def _figures(tenants: Mapping[str, Figures], name: str) -> pb.PreviewFigures:
    figures = tenants.get(name, Figures())
    return pb.PreviewFigures(**msgspec.structs.asdict(figures))


_NOTHING = Outcome(hit_rate=0.0, pressure=0.0, tenants={})
