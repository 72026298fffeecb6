"""Changed limits come into force: who is above them gives back, bit by bit, and nobody's request ends for it.

From the first plan after a change on nothing is granted above the new limits: nothing starts, a sequence that needs a
block sits out, and a block that is in use takes the place of a cached one. What is above the limits by then goes piece
by piece where a sequence is streamed, then newest sequences first, then cached blocks, and not all at once: 60,000
cached blocks, a large pool's, would hold a step up by 0.4 s. A plan gives back `BLOCKS_A_PLAN`, some milliseconds'
work, and one sequence at least.

Beams cannot sit out (searching.py), so a tenant that searches is under its ceiling after the first plan. So is a share
group: whoever runs on its blocks goes on with blocks of its own.
"""

from engine.errors import InvariantError
from engine.memory.accounts import Account
from engine.scheduler.intake import HOLD_SECONDS, Intake
from engine.scheduler.pressure import newest
from engine.scheduler.roster import Roster
from engine.scheduler.sequence import SequenceState
from engine.scheduler.streaming import PIECE_BLOCKS
from engine.scheduler.tenant import Tenant

AT_ONCE = -1  # in place of a plan's number: who has to go may come back in this very plan, where it fits
PLAN_SECONDS = 0.01  # a plan that gives so much back takes no longer, beside its step
BLOCKS_A_PLAN = 512  # given back at most, beyond the first sequence: of blocks in use and of cached ones together


class Enforcement:
    """Brings tenants and share groups under their limits. Knows who is above them, and under which policy."""

    def __init__(self, roster: Roster, intake: Intake, *, blocks_a_plan: int = BLOCKS_A_PLAN) -> None:
        self.over_blocks = 0  # above the limits when the policy in force was first enforced
        self._roster = roster
        self._intake = intake
        self._blocks_a_plan = blocks_a_plan
        self._above: dict[Tenant, int] = {}  # who gives back, and the blocks that each held after the last plan
        self._told = intake.applied  # of which policy it was said that all is settled

    @property
    def is_due(self) -> bool:
        """Whether a plan has something to enforce."""
        return bool(self._above or self._intake.changed or self._intake.shared.changed)

    @property
    def num_plans(self) -> int:
        """The plans, the last one included, that it takes at most until nobody is above limits; 0: nobody was."""
        if not self.over_blocks and not self._above:
            return 0
        work = sum(self._work(tenant) for tenant in self._above)
        return 1 + len(self._above) + work // self._blocks_a_plan

    def enforce(self, plan_number: int, now: float) -> None:
        """Give back what this plan may. Who is preempted comes back in a later plan than `plan_number`, or AT_ONCE."""
        intake = self._intake
        groups = intake.shared.settle()
        if intake.changed or groups:
            changed = dict.fromkeys(intake.changed, 0)
            self._above = changed | self._above
            intake.changed.clear()
            accounts = [tenant.account for tenant in self._above if tenant.account is not None]
            self.over_blocks = sum(max(0, account.blocks - account.hard) for account in (*accounts, *groups))
        for account in groups:
            self._bring_group_down(account, plan_number, now)
        left = self._blocks_a_plan
        for tenant in list(self._above):
            if tenant.policy is None:
                left = self._set_aside(tenant, left, plan_number, now)
            else:
                left = self._bring_down(tenant, left, plan_number, now)
            if tenant.account is not None:
                left = self._trim(tenant.account, left)
            if self._is_above(tenant):
                self._above[tenant] = tenant.account.blocks if tenant.account is not None else 0
            else:
                del self._above[tenant]
                self._roster.drop_if_idle(tenant)

    def take_settled(self) -> tuple[int, int] | None:
        """Return version and epoch of the policy in force, once: when nobody is above any limit any more."""
        if self.is_due or self._told == self._intake.applied:
            return None
        self._told = self._intake.applied
        return self._told

    def audit(self) -> None:
        """Check that nobody is above a ceiling but who gives back, and that those hold no more than before."""
        most = {tenant.account: held for tenant, held in self._above.items()}
        if self._intake.changed or self._intake.shared.changed:
            return  # the next plan enforces them
        for account in self._roster.memory.accounts:
            allowed = max(account.hard, most.get(account, 0))
            if account.blocks > allowed:
                raise InvariantError(f"{account.owner} holds {account.blocks} blocks above its limit {allowed}")
            if account not in most and account.used + account.reserved > account.hard:
                raise InvariantError(f"{account.owner} uses and reserves more than its limit {account.hard}")

    def _bring_down(self, tenant: Tenant, left: int, plan_number: int, now: float) -> int:
        """Preempt a tenant's newest sequences while it is above its limits; return how many blocks more may go."""
        roster, policy, account = self._roster, tenant.policy, tenant.account
        assert policy is not None and account is not None, "a policy comes with an account"
        searches = [group for group in roster.searches.values() if group.leader.tenant is tenant]
        for group in searches:
            if group.most_blocks > account.hard or group.width > policy.max_running:
                left -= self._preempt(group.leader, plan_number, now)
        if account.used + account.reserved > account.hard:
            for sequence in tenant.running:
                if sequence.table is not None and sequence.beams is None:  # beams have what they need, or none runs
                    roster.memory.unreserve(sequence.table)
        while tenant.running and (left > 0 or searches) and self._exceeds(tenant):
            if account.used + account.reserved > account.hard and roster.streaming.squeeze(tenant, now):
                left -= PIECE_BLOCKS
                continue
            victim = newest(tenant.running, protected=True)
            assert victim is not None, "there is a running one"
            left -= self._preempt(victim, plan_number, now)
        return left

    def _set_aside(self, tenant: Tenant, left: int, plan_number: int, now: float) -> int:
        """Stop what a tenant without policy has; each request ends unless a policy comes in time."""
        has_searches = any(group.leader.tenant is tenant for group in self._roster.searches.values())
        while tenant.running and (left > 0 or has_searches):
            left -= self._preempt(tenant.running[-1], plan_number, now)
        for line in tenant.lines:
            while (head := line.head()) is not None:
                self._roster.hold(head, now + HOLD_SECONDS)
        for sequence in list(tenant.parked.values()):
            self._roster.hold(sequence, now + HOLD_SECONDS)
        return left

    def _bring_group_down(self, account: Account, plan_number: int, now: float) -> None:
        """Bring a share group under its limits: its newest users go on with blocks of their own."""
        roster = self._roster
        roster.memory.trim(account)
        while account.blocks > account.hard:
            victim = newest((one for one in roster.running if _uses(one, account)), protected=True)
            assert victim is not None, "what is above the ceiling is in use"
            roster.preempt(victim, plan_number, now, by=account.owner)
            roster.memory.trim(account)
        self._intake.shared.forget_if_removed(account)

    def _preempt(self, sequence: SequenceState, plan_number: int, now: float) -> int:
        """Preempt a sequence, with all its beams, and return the blocks that it had."""
        members = [sequence] if sequence.beams is None else sequence.beams.members
        num_blocks = sum(len(one.table.blocks) for one in members if one.table is not None)
        self._roster.preempt(sequence, plan_number, now)
        return num_blocks

    def _trim(self, account: Account, left: int) -> int:
        """Give up cached blocks above the ceiling, `left` at most; return how many more may go."""
        count = min(account.blocks - account.hard, account.cached, left)
        for _ in range(count):
            self._roster.memory.supply.evict(account)
        return left - max(0, count)

    def _exceeds(self, tenant: Tenant) -> bool:
        """Say whether a tenant's sequences are above its limits."""
        policy, account = tenant.policy, tenant.account
        assert policy is not None and account is not None, "a policy comes with an account"
        if account.used + account.reserved > account.hard:
            return True
        return self._roster.num_places(tenant) > policy.max_running

    def _is_above(self, tenant: Tenant) -> bool:
        account = tenant.account
        if account is not None and account.blocks > account.hard:
            return True
        return bool(tenant.running) if tenant.policy is None else self._exceeds(tenant)

    def _work(self, tenant: Tenant) -> int:
        """Return the blocks that a tenant still gives back: of its newest sequences, then cached ones."""
        account = tenant.account
        if account is None:
            return 0
        excess = account.used + account.reserved - account.hard
        most = 0 if tenant.policy is None else tenant.policy.max_running
        leaving = 0
        for place, sequence in enumerate(sorted(tenant.running, key=lambda one: -one.number)):
            if sequence.table is None or (leaving >= excess and len(tenant.running) - place <= most):
                break
            leaving += len(sequence.table.blocks)
        return leaving + max(0, account.blocks - account.hard)


def _uses(sequence: SequenceState, account: Account) -> bool:
    table = sequence.table
    return table is not None and table.num_head > 0 and table.head_account is account
