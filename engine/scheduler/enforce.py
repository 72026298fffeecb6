"""Changed limits: the first thing that a plan does is to bring everybody under theirs. Nobody's request ends for it."""

from engine.memory.accounts import Account
from engine.policy import TenantPolicy
from engine.scheduler.intake import HOLD_SECONDS, Intake
from engine.scheduler.pressure import newest
from engine.scheduler.roster import Roster
from engine.scheduler.sequence import SequenceState
from engine.scheduler.sharing import SharedPrefixes
from engine.scheduler.tenant import Tenant

AT_ONCE = -1  # in place of a plan's number: who has to go may come back in this very plan, where it fits


def enforce(roster: Roster, intake: Intake, plan_number: int, now: float) -> None:
    """Bring tenants with a new policy under its limits: newest sequences lose their blocks, none is ended.

    They come back in a later plan than `plan_number`, or where they fit AT_ONCE.
    """
    for tenant in intake.changed:
        policy, account = tenant.policy, tenant.account
        if policy is None:
            _set_aside(roster, tenant, plan_number, now)
            if account is not None:
                roster.memory.trim(account)
            continue
        assert account is not None, "a policy comes with an account"
        for group in list(roster.searches.values()):
            too_large = group.most_blocks > account.hard or group.width > policy.max_running
            if group.leader.tenant is tenant and too_large:
                roster.preempt(group.leader, plan_number, now)
        roster.memory.trim(account)
        if account.used + account.reserved > account.hard:
            for sequence in tenant.running:
                if sequence.table is not None and sequence.beams is None:  # beams have what they need, or none runs
                    roster.memory.unreserve(sequence.table)
        while tenant.running and _exceeds(account, roster.num_places(tenant), policy):
            victim = newest(tenant.running, protected=True)
            assert victim is not None, "there is a running one"
            roster.preempt(victim, plan_number, now)
            roster.memory.trim(account)
    intake.changed.clear()


def enforce_groups(roster: Roster, shared: SharedPrefixes, plan_number: int, now: float) -> None:
    """Bring share groups under their limits: their newest users go on with blocks of their own, as in `enforce`."""
    for account in shared.settle():
        roster.memory.trim(account)
        while account.blocks > account.hard:
            users = (one for one in roster.running if one.table is not None and one.table.num_head)
            victim = newest((one for one in users if _uses(one, account)), protected=True)
            assert victim is not None, "what is above the ceiling is in use"
            roster.preempt(victim, plan_number, now, by=account.owner)  # on blocks of its own
            roster.memory.trim(account)
        shared.forget_if_removed(account)


def _exceeds(account: Account, num_places: int, policy: TenantPolicy) -> bool:
    return account.used + account.reserved > account.hard or num_places > policy.max_running


def _set_aside(roster: Roster, tenant: Tenant, plan_number: int, now: float) -> None:
    """Stop all that a tenant without policy has; each request ends unless a policy comes in time."""
    while tenant.running:
        roster.preempt(tenant.running[0], plan_number, now)
    for line in tenant.lines:
        while (head := line.head()) is not None:
            roster.hold(head, now + HOLD_SECONDS)
    for sequence in list(tenant.parked.values()):
        roster.hold(sequence, now + HOLD_SECONDS)


def _uses(sequence: SequenceState, account: Account) -> bool:
    return sequence.table is not None and sequence.table.head_account is account
