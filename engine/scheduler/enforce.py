"""Changed limits: the first thing that a plan does is to bring everybody under theirs. Nobody's request ends for it."""

from engine.memory.accounts import Account
from engine.scheduler.intake import HOLD_SECONDS, Intake
from engine.scheduler.pressure import newest
from engine.scheduler.roster import Roster
from engine.scheduler.sequence import SequenceState
from engine.scheduler.sharing import SharedPrefixes
from engine.scheduler.tenant import Tenant


def enforce(roster: Roster, intake: Intake, number: int, now: float) -> None:
    """Bring tenants with a new policy under its limits: newest sequences lose their blocks, none is ended."""
    for tenant in intake.changed:
        policy, account = tenant.policy, tenant.account
        if policy is None:
            _set_aside(roster, tenant, number, now)
            if account is not None:
                roster.memory.trim(account)
            continue
        assert account is not None, "a policy comes with an account"
        if account.blocks + account.reserved > account.hard:
            for sequence in tenant.running:
                if sequence.table is not None:
                    roster.memory.unreserve(sequence.table)
        roster.memory.trim(account)
        while tenant.running and (account.blocks > account.hard or len(tenant.running) > policy.max_running):
            victim = newest(tenant.running, protected=True)
            assert victim is not None, "there is a running one"
            roster.preempt(victim, number, now)
            roster.memory.trim(account)
    intake.changed.clear()


def enforce_groups(roster: Roster, shared: SharedPrefixes, now: float) -> None:
    """Bring share groups under their limits: their newest users go on with blocks of their own."""
    for account in shared.settle():
        roster.memory.trim(account)
        while account.blocks > account.hard:
            users = (one for one in roster.running if one.table is not None and one.table.num_head)
            victim = newest((one for one in users if _uses(one, account)), protected=True)
            assert victim is not None, "what is above the ceiling is in use"
            roster.preempt(victim, -1, now)  # it may come back in this very plan, on blocks of its own
            roster.memory.trim(account)
        shared.forget_if_removed(account)


def _set_aside(roster: Roster, tenant: Tenant, number: int, now: float) -> None:
    """Stop all that a tenant without policy has; each request ends unless a policy comes in time."""
    for sequence in list(tenant.running):
        roster.preempt(sequence, number, now)
    for line in tenant.lines:
        while (head := line.head()) is not None:
            roster.hold(head, now + HOLD_SECONDS)
    for sequence in list(tenant.parked.values()):
        roster.hold(sequence, now + HOLD_SECONDS)


def _uses(sequence: SequenceState, account: Account) -> bool:
    return sequence.table is not None and sequence.table.head_account is account
