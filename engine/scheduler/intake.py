"""What comes in from outside between two steps: requests, cancels, policies, and the passing of time."""

import random
from collections.abc import Iterable

from engine.errors import ProtocolError
from engine.policy import PolicyUpdate, ShadowLimits, TenantPolicy
from engine.request import FinishReason, GenerationRequest, RefusalCode, SequenceId
from engine.scheduler.constraining import PREPARE_SECONDS, Constraining
from engine.scheduler.fairness import class_rank
from engine.scheduler.outputs import Refusal, RequestOutput
from engine.scheduler.roster import Roster
from engine.scheduler.sequence import SequenceState, State
from engine.scheduler.sharing import SharedPrefixes
from engine.scheduler.sizing import Limits, beam_width, check_form, size
from engine.scheduler.tenant import Tenant
from engine.scheduler.trial import Trial

HOLD_SECONDS = 5.0  # how long a request waits for its tenant's policy
_RANDOM_MASK = (1 << 64) - 1
MAX_HELD = 1024  # outputs of one tenant that may be held: without a policy it has no queue limit of its own


class Intake:
    """Takes requests and policies in. Nothing here grants a block."""

    def __init__(
        self, roster: Roster, limits: Limits, eos_token_ids: Iterable[int], constraining: Constraining
    ) -> None:
        self.shared = SharedPrefixes(roster.memory, limits)
        self.applied = (-1, -1)  # version and epoch of the policy in force; none yet
        self.changed: set[Tenant] = set()  # tenants whose limits the next plan must enforce
        self.on_trial: set[Tenant] = set()  # tenants with limits that are tried
        self.draining = False
        self._roster = roster
        self._limits = limits
        self._constraining = constraining
        self._eos = frozenset(eos_token_ids)
        self._random = random.SystemRandom()

    def submit(self, sequence: SequenceId, request: GenerationRequest, now: float) -> None:
        """Take, hold or refuse a request; a refusal is reported with the next outputs.

        Raises:
            ProtocolError: the sequence id is in use.
        """
        if sequence in self._roster.sequences or sequence in self._roster.groups:
            raise ProtocolError(f"sequence {sequence} is already in use")
        if self.draining:
            message = "The worker takes no new requests: it is being drained. Try again."
            self._turn_away(sequence, Refusal(RefusalCode.DRAINING, message))
            return
        preparation = self._constraining.prepare(request)
        is_prepared = preparation is None or preparation.is_done  # asked once: a thread may say otherwise any moment
        refusal = check_form(request, self._limits, self._roster.max_running)
        refusal = refusal or self._constraining.refusal(request, preparation)
        if refusal is not None:
            self._turn_away(sequence, refusal)
            return
        tenant = self._roster.tenants.get(request.tenant)
        if self._must_hold(tenant, request) or not is_prepared:
            num_held = 0 if tenant is None else tenant.num_held
            if num_held + max(request.n, beam_width(request)) > MAX_HELD:
                self._turn_away(sequence, _queue_full(num_held, None))
            else:
                seconds = HOLD_SECONDS if is_prepared else PREPARE_SECONDS
                state = self._enter(sequence, request)
                self._constraining.enter(state, preparation, is_prepared=is_prepared)
                self._roster.hold(state, now + seconds)
            return
        state = self._enter(sequence, request)
        self._constraining.enter(state, preparation, is_prepared=True)
        self._settle(state, now)

    def cancel(
        self, sequences: Iterable[SequenceId], reason: FinishReason, now: float, output_index: int | None = None
    ) -> None:
        """End these requests now, or one output of each, whatever their state; unknown ids are ignored."""
        for sequence in sequences:
            state, group = self._roster.sequences.get(sequence), self._roster.groups.get(sequence)
            if group is not None:
                for member in list(group.members):
                    if output_index in (None, member.index):
                        self._roster.finish(member, reason, now)
            elif state is not None and output_index in (None, 0 if state.beams is None else None):
                self._roster.finish(state, reason, now)

    def apply(self, update: PolicyUpdate, now: float) -> tuple[int, int]:
        """Put a policy in force and return the version and epoch in force; one that is not newer changes nothing."""
        if (update.version, update.epoch) <= self.applied:
            return self.applied
        self.applied = (update.version, update.epoch)
        named = {policy.tenant for policy in update.tenants}
        removed = set(update.removed) - named
        if update.snapshot:
            removed |= self._roster.tenants.keys() - named
            self._roster.memory.tiers.keep_only(named)
        self._share(update)
        for policy in update.tenants:
            self._adopt(policy)
        for name in removed:
            tenant = self._roster.tenants.get(name)
            if tenant is not None and tenant.policy is not None:
                self._forsake(tenant, now)
        self._roster.memory.accounts.fit_guarantees()
        for held in list(self._roster.held.values()):
            if not self._must_hold(held.tenant, held.request) and not self._constraining.awaits(held):
                self._settle(held, now)
        return self.applied

    def _share(self, update: PolicyUpdate) -> None:
        named = {group.name for group in update.share_groups}
        removed = set(update.removed_share_groups) - named
        if update.snapshot:
            removed |= self.shared.names() - named
        for name in removed:
            self.shared.remove(name)
        for group in update.share_groups:
            self.shared.register(group)

    def take_prepared(self, now: float) -> None:
        """Let requests go on whose grammars have been prepared meanwhile."""
        for sequence, problem in self._constraining.take_prepared():
            if problem:
                self._roster.refuse(sequence, Refusal(RefusalCode.INVALID, problem, "grammar"), now)
            elif self._must_hold(sequence.tenant, sequence.request):
                self._roster.hold(sequence, now + HOLD_SECONDS)
            else:
                self._settle(sequence, now)

    def expire(self, now: float) -> None:
        """End what has waited as long as it may."""
        while (sequence := self._roster.timers.pop_due(now)) is not None:
            self._end_late(sequence, now)

    def _must_hold(self, tenant: Tenant | None, request: GenerationRequest) -> bool:
        return tenant is None or tenant.policy is None or request.policy_version > self.applied[0]

    def _enter(self, sequence: SequenceId, request: GenerationRequest) -> SequenceState:
        state = self._roster.enter(sequence, request)
        sampling = request.sampling
        state.random_key = self._random.getrandbits(64) if sampling.seed is None else sampling.seed & _RANDOM_MASK
        state.stop_ids = sampling.stop_token_ids if sampling.ignore_eos else sampling.stop_token_ids | self._eos
        if state.beams is not None:
            state.sampling = state.beams.sampling(self._limits.vocab_size)
        return state

    def _settle(self, sequence: SequenceState, now: float) -> None:
        """Put a request whose tenant has a policy in line, or refuse it."""
        tenant = sequence.tenant
        assert tenant.policy is not None, "checked by the caller"
        sequence.rank = class_rank(sequence.request.priority, tenant.policy.priority)
        if not sequence.admitted:
            num_taken, num_asked = tenant.num_live - tenant.num_held + tenant.num_ahead, sequence.num_asked
            most = tenant.policy.max_running + tenant.policy.max_queued
            if num_asked > max(most, tenant.policy.fleet_max_running) > 0:
                self._roster.refuse(sequence, _too_many(sequence, tenant.policy), now)
                return
            if num_taken + num_asked > most:
                self._roster.refuse(sequence, _queue_full(num_taken, tenant.policy), now)
                return
            granted = size(sequence.request, tenant.policy, self._limits)
            if isinstance(granted, Refusal):
                self._roster.refuse(sequence, granted, now)
                return
            sequence.max_tokens = granted
            sequence.policy_stamp = tenant.policy_stamp
            if tenant.trial is not None:
                tenant.trial.arrived(sequence, num_taken, self._limits, self._roster)
        self._roster.queue(sequence)

    def _adopt(self, policy: TenantPolicy) -> None:
        tenant = self._roster.tenant(policy.tenant)
        account = self._roster.memory.accounts.set_limits(
            policy.tenant, soft=self._limits.soft_blocks(policy), hard=self._limits.hard_blocks(policy)
        )
        tenant.adopt(policy, account)
        self._roster.memory.tiers.limit(policy)
        self._roster.parking.adopted(policy)
        self._try(tenant, policy.shadow)
        self.changed.add(tenant)
        for parked in list(tenant.parked.values()):
            self._roster.queue(parked)

    def _try(self, tenant: Tenant, shadow: ShadowLimits | None) -> None:
        """Put limits on trial, or take all off."""
        if shadow is None or shadow == ShadowLimits():
            tenant.trial = None
            self.on_trial.discard(tenant)
            return
        tenant.trial = tenant.trial or Trial()
        tenant.trial.adopt(shadow, self._limits)
        self.on_trial.add(tenant)

    def _forsake(self, tenant: Tenant, now: float) -> None:
        """Take the policy away: nothing is granted, and the next plan parks what runs until the hold time is over."""
        account = self._roster.memory.accounts.set_limits(tenant.name, soft=0, hard=0)
        tenant.adopt(None, account)
        self._try(tenant, None)
        self._roster.fetching.stop(tenant, now)
        self._roster.memory.tiers.forget(tenant.name)
        self._roster.parking.forget(tenant.name)
        self.changed.add(tenant)
        self._roster.drop_if_idle(tenant)

    def _end_late(self, sequence: SequenceState, now: float) -> None:
        waited = f"{max(0.0, now - sequence.request.arrived_at):.1f} s"
        if sequence.state is State.HELD and self._constraining.awaits(sequence):
            message = f"The grammar was not ready after {waited}: the worker has many to prepare. Try again."
            self._roster.refuse(sequence, Refusal(RefusalCode.UNAVAILABLE, message), now)
        elif sequence.state is State.HELD:
            message = f"Tenant {sequence.tenant.name} has no policy on this worker, or not the one asked for."
            if sequence.admitted:
                self._roster.finish(sequence, FinishReason.ERROR, now, message=message)
            else:
                message += f" The request waited {waited} for it."
                self._roster.refuse(sequence, Refusal(RefusalCode.NO_POLICY, message), now)
        elif sequence.state is State.PARKED and sequence.refusal is not None:
            refusal = sequence.refusal
            if sequence.admitted:
                self._roster.finish(sequence, FinishReason.LENGTH, now, message=refusal.message)
            else:
                self._roster.refuse(sequence, refusal, now)
        elif sequence.admitted:
            message = f"The deadline passed {waited} after arrival."
            self._roster.finish(sequence, FinishReason.LENGTH, now, message=message)
        else:
            message = f"The deadline passed after {waited} in the tenant's queue. Try again, or allow more time."
            self._roster.refuse(sequence, Refusal(RefusalCode.UNAVAILABLE, message), now)

    def _turn_away(self, sequence: SequenceId, refusal: Refusal) -> None:
        self._roster.report(RequestOutput(sequence=sequence, refusal=refusal))


def _too_many(sequence: SequenceState, policy: TenantPolicy) -> Refusal:
    field, ways = ("n", "n or best_of") if sequence.beams is None else ("beam_width", "beam_width")
    message = (
        f"The request comes to {sequence.num_asked} outputs, and the tenant's max_running {policy.max_running} and"
        f" max_queued {policy.max_queued} on this worker never allow so many. Lower {ways} or ask for higher limits."
    )
    return Refusal(RefusalCode.INVALID, message, field)


def _queue_full(num_live: int, policy: TenantPolicy | None) -> Refusal:
    limit = (
        f"max_running {policy.max_running} and max_queued {policy.max_queued} allow no more"
        if policy is not None
        else "no more are held until the tenant's policy arrives"
    )
    message = f"The tenant has {num_live} outputs running or waiting, and {limit}. Try again when some have ended."
    return Refusal(RefusalCode.QUEUE_FULL, message)
