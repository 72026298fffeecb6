"""Sequences larger than their share of the device: what they keep there, and what goes to host memory when.

    streamed   a sequence whose blocks alone would exceed what its tenant may ever have on the device (`reach`). Its own
               oldest blocks go to host memory (memory/streaming.py) where others would preempt somebody. What must be
               resident is a window of `LEAST_WINDOW_TOKENS`; it keeps what it can have beyond that as anyone may:
               within the guarantee at others' expense, above it as long as the pool has room.
    pieces     blocks go an eighth of the resident ones at a time, so that a decode does not move one in each step. They
               come back where as much again is free, and stays free.
    squeezed   where others have a right to its blocks, it gives pieces down to its window before anybody of its tenant
               is preempted, and its tenant's other requests may start on all but a quarter of the tenant's ceiling.
    host room  what is hosted is claimed, within the tenant's ceiling in host memory and all of it. Where that is short,
               the newest give way: first what is kept there for those that wait, then streamed sequences that run, at
               the last what is kept for older ones that wait. The oldest that runs always goes on, and where nobody
               runs the first in line starts: everybody comes to an end.

Requests with several outputs, beam searches, and requests without a namespace are never streamed: their blocks are
shared, or have no keys. A streamed sequence computes a registered prefix on its own account.
"""

from typing import TYPE_CHECKING

from engine.memory.accounts import Account
from engine.memory.eviction.base import BlockKey
from engine.memory.streaming import can_offload, num_movable, offload, recall
from engine.memory.tiers.claims import Streamed
from engine.scheduler.sequence import SequenceState, State
from engine.scheduler.sizing import may_stream, window_blocks

if TYPE_CHECKING:
    from engine.scheduler.roster import Roster
    from engine.scheduler.tenant import Tenant

AT_ONCE = -1  # in place of a plan's number: who has to go may come back in this very plan, where it fits
_PIECES = 8  # of what is resident, one goes at a time
PIECE_BLOCKS = 64  # at most: some milliseconds' copying
_KEPT_SHARE = 4  # of the tenant's ceiling, what a streamed sequence keeps beside its tenant's other requests


class Streaming:
    """Decides who is streamed and moves blocks over. What is where stands in the tables."""

    def __init__(self, roster: "Roster") -> None:
        self.running: list[SequenceState] = []  # that are streamed
        self.num_moved = 0  # changes of what is hosted: steps that a plan has written down say it anew
        self.offloaded_blocks = 0
        self.recalled_blocks = 0
        self._roster = roster
        self._memory = roster.memory
        shape = self._memory.shape
        self._is_on = shape.streams and shape.num_slabs > 0
        self._window = window_blocks(shape.block_size)
        self._plan_number, self._in_flight = 0, False
        self._num_broken = 0  # claimed blocks that host memory had lost when it was last looked

    # ------------------------------------------------------------ who

    def reach(self, account: Account) -> int:
        """Return the most blocks of the device that one sequence of an account could ever have."""
        most = min(account.hard, self._memory.shape.num_blocks)
        unguarded = self._memory.shape.num_blocks - self._memory.accounts.guarantees(account)
        return min(most, unguarded) if unguarded >= self._window else most

    def may_stream(self, sequence: SequenceState) -> bool:
        """Say whether a sequence could be streamed at all."""
        return self._is_on and may_stream(sequence.request) and self._memory.host.keeps(sequence.tenant.name)

    def is_large(self, sequence: SequenceState, account: Account) -> bool:
        """Say whether a sequence that is to start has more blocks than it could have on the device."""
        if not self._is_on or self._memory.blocks_for(len(sequence.tokens)) <= self.reach(account):
            return False
        return self._window <= account.hard and self.may_stream(sequence)

    def can_hold(self, sequence: SequenceState, account: Account) -> bool:
        """Say whether device and host memory together could hold a sequence's tokens, as limits are."""
        if not self.is_large(sequence, account):
            return False
        return self._memory.blocks_for(len(sequence.tokens)) <= account.hard + self._memory.host.ceiling(account.owner)

    def has_room(self, sequence: SequenceState, account: Account, expected: int) -> bool:
        """Say whether host memory has room for what a sequence that is to start will have there, and for the others.

        `expected`: the blocks that it will have in all. It starts in any case where nobody could be in its way.
        """
        host, streamed = self._memory.host, self.running
        window = max(self._window, self.reach(account) - account.used)
        own = len(host.claims.of(Streamed(sequence.id)))
        growth = sum(self._growth(one) for one in streamed)
        if expected - window - own + growth <= host.claims.room(account.owner):
            return True
        if not self._roster.running:
            return True
        return not streamed and not any(_is_before(one, sequence) for one in self._claimants())

    def _growth(self, sequence: SequenceState) -> int:
        """Return the blocks that a streamed sequence is still going to take for its present tokens."""
        table = sequence.table
        return 0 if table is None else max(0, self._memory.blocks_for(len(sequence.tokens)) - len(table.blocks))

    def _claimants(self) -> list[SequenceState]:
        """Return the sequences for which something is kept in host memory."""
        sequences = self._roster.sequences
        return [sequences[one] for one in self._memory.host.claims.sequences()]

    # ------------------------------------------------------------ comings and goings

    def started(self, sequence: SequenceState) -> None:
        """Note that a running sequence is streamed from here on."""
        if not sequence.streams:
            sequence.streams = True
            self.running.append(sequence)

    def stopped(self, sequence: SequenceState) -> None:
        """Note that a sequence runs no more. What it has in host memory stays there until it is `gone`."""
        if sequence.streams:
            sequence.streams = False
            self.running.remove(sequence)

    def begin(self, plan_number: int, now: float, *, in_flight: bool) -> None:
        """Start a plan: who has lost blocks in host memory to a lowered ceiling has to begin again.

        `in_flight`: a step is, which may read what no table names any more.
        """
        self._plan_number, self._in_flight = plan_number, in_flight
        if self._num_broken == self._memory.host.num_broken:
            return
        self._num_broken = self._memory.host.num_broken
        host = self._memory.host
        for sequence in self.running.copy():
            if any(host.get(key) is None for key in host.claims.of(Streamed(sequence.id))):
                self._roster.preempt(sequence, plan_number if in_flight else AT_ONCE, now)
                self.gone(sequence)

    # ------------------------------------------------------------ blocks out

    def give(self, sequence: SequenceState, now: float) -> bool:
        """Make room for a sequence by blocks of its tenant's that stream: of the one that has most. False: none can.

        The others keep their shares of what the tenant may have.
        """
        table, account = sequence.table, sequence.tenant.account
        assert table is not None and account is not None, "it runs"
        if not sequence.streams and not self._becomes(sequence, account):
            return False
        share = self._share(account, sequence)
        own = [
            one for one in sequence.tenant.running if one is sequence or (one.streams and _num_resident(one) > share)
        ]
        if any(self._offload(one, now) for one in sorted(own, key=_num_resident, reverse=True)):
            return True
        return self._make_host_room(sequence, now) and self._offload(sequence, now) > 0

    def squeeze(self, tenant: "Tenant", now: float, *, kept: int = 0) -> bool:
        """Let a tenant's streamed sequence that has most give a piece, down to its window or `kept` blocks."""
        if not self._is_on:
            return False
        kept = max(kept, self._window)
        own = [one for one in tenant.running if one.streams and _num_resident(one) > kept]
        return any(self._offload(one, now) for one in sorted(own, key=_num_resident, reverse=True))

    def squeeze_for(self, account: Account, tenant: "Tenant", num_blocks: int, now: float) -> bool:
        """Have streamed sequences use so many blocks less, for another one of their tenant's; say whether they do.

        They keep their share of the tenant's ceiling, and give nothing where the rest is not enough.
        """
        kept = max(self._window, account.hard // _KEPT_SHARE)
        own = [one for one in tenant.running if one.streams]
        if num_blocks > sum(max(0, _num_resident(one) - kept) for one in own):
            return False
        goal = account.used - num_blocks
        while account.used > goal:
            if not self.squeeze(tenant, now, kept=kept):
                return False
        return True

    def waits(self, sequence: SequenceState) -> bool:
        """Say whether a sequence that cannot give anything now will be able to, when something has been copied or read.

        Its blocks are being computed or copied, or slabs that it may have are still in use.
        """
        table, host, account = sequence.table, self._memory.host, sequence.tenant.account
        if table is None or account is None or not (sequence.streams or self._becomes(sequence, account)):
            return False
        if not num_movable(table):
            return self._in_flight and sequence.computed // self._memory.shape.block_size > table.num_sealed
        may_go = host.claims.room(sequence.tenant.name) > 0 or host.claims.wants(self._next_key(sequence))
        return may_go and (self._in_flight or self._memory.mover.is_moving)

    def fit(self, sequence: SequenceState, num_tokens: int, now: float) -> int:
        """Have slots for the next tokens of a streamed prefill; return for how many, `num_tokens` at most."""
        table, memory = sequence.table, self._memory
        assert table is not None, "it runs"
        num_tokens = min(num_tokens, self._share(table.account, sequence) * memory.shape.block_size)
        while memory.grow(table, sequence.computed + num_tokens, now) is not None:
            if not self.give(sequence, now):
                self._grow_as_far(sequence, sequence.computed + num_tokens, now)
                break
        size = max(0, min(num_tokens, table.capacity - sequence.computed))
        if not size and not self.waits(sequence) and not self._in_flight:
            self._roster.preempt(sequence, self._plan_number, now)  # host memory is others', who came first
        return size

    def _grow_as_far(self, sequence: SequenceState, num_tokens: int, now: float) -> None:
        """Grow by what can be had without anything being given, for `num_tokens` tokens in all at most."""
        table, memory = sequence.table, self._memory
        assert table is not None, "it runs"
        account, size = table.account, memory.shape.block_size
        most = min(account.hard - account.used - account.reserved, memory.available(account)) + table.reserved
        is_stuck = sequence.computed >= table.capacity and not self._in_flight
        if most > 0:
            memory.grow(table, min(num_tokens, (len(table.blocks) + most) * size), now)
        elif is_stuck and len(self._roster.running) == 1:  # what is cached within guarantees is of use to nobody else
            memory.grow(table, sequence.computed + 1, now, last_resort=True)

    def _share(self, account: Account, sequence: SequenceState) -> int:
        """Return the blocks that each of a tenant's streamed sequences may have, this one among them."""
        others = sum(one.streams and one is not sequence for one in sequence.tenant.running)
        return max(self._window, self.reach(account) // (1 + others))

    def _becomes(self, sequence: SequenceState, account: Account) -> bool:
        """Say whether a running sequence is streamed from here on: what it needs next exceeds what it could have."""
        table = sequence.table
        if not self._is_on or table is None or not can_offload(table) or not self.may_stream(sequence):
            return False
        needed = self._memory.blocks_for(sequence.computed + 1)
        return needed > self.reach(account) and self._window <= account.hard

    def _offload(self, sequence: SequenceState, now: float) -> int:
        """Move a piece of a sequence's blocks to host memory, as far as there is room; return how many went."""
        table = sequence.table
        assert table is not None, "it runs"
        count = min(num_movable(table), max(1, min(table.num_resident // _PIECES, PIECE_BLOCKS)))
        moved = offload(self._memory, table, count, now) if count else 0
        if moved:
            self.started(sequence)
            self.num_moved += 1
            self.offloaded_blocks += moved
        return moved

    def _next_key(self, sequence: SequenceState) -> BlockKey:
        table = sequence.table
        assert table is not None and table.chain is not None, "it can be offloaded"
        return table.chain.keys[table.num_hosted]

    def _make_host_room(self, sequence: SequenceState, now: float) -> bool:
        """Have those give way, newest first, that have claims in host memory; False: what is left is older ones'.

        They do so only where the sequence has something to move, and their claims are in its way.
        """
        table, host, tenant = sequence.table, self._memory.host, sequence.tenant
        assert table is not None, "it runs"
        if not num_movable(table):
            return False
        while not host.claims.room(tenant.name) and not host.claims.wants(self._next_key(sequence)):
            if not self._give_way(sequence, now):
                return False
        return True

    def _give_way(self, sequence: SequenceState, now: float) -> bool:
        """Take what is kept in host memory for another sequence; False: only for older ones that run."""
        host, roster, tenant = self._memory.host, self._roster, sequence.tenant
        is_own = not host.claims.headroom(tenant.name)  # then only its tenant's claims are in its way
        others = [one for one in self._claimants() if one is not sequence and (one.tenant is tenant or not is_own)]
        later = [one for one in others if not _is_before(one, sequence)]
        waiting = [one for one in others if one.table is None]
        victim = max(set(later).intersection(waiting) or later or waiting, key=lambda one: one.number, default=None)
        if victim is None:
            return False
        if victim.table is not None:
            roster.preempt(victim, self._plan_number, now, by=tenant.name)
            if not self._in_flight:
                self._memory.let_unread_go()
        host.claims.release(victim.id)
        self.gone(victim)
        return True

    def gone(self, sequence: SequenceState) -> None:
        """Note that nothing of a sequence has to stay in host memory any more."""
        self._memory.host.claims.release(Streamed(sequence.id))

    # ------------------------------------------------------------ blocks back

    def recall(self, now: float) -> None:
        """Load blocks back for streamed sequences, where there is room to spare: at most a piece of each in a plan."""
        for sequence in self.running:
            table, account = sequence.table, sequence.tenant.account
            if table is None or account is None or not table.hosted or sequence.remaining > 1:
                continue
            if sequence.request.embed:  # nothing follows its prompt
                continue
            size = max(1, min(table.num_resident // _PIECES, PIECE_BLOCKS))
            spare = min(account.hard - account.used - account.reserved, self._memory.available(account))
            count = min(table.num_hosted, spare - size, PIECE_BLOCKS)
            if count >= size and recall(self._memory, table, count, sequence.tokens, now):
                self.num_moved += 1
                self.recalled_blocks += count


def _is_before(one: SequenceState, other: SequenceState) -> bool:
    """Say whether one came first, and can run."""
    return one.number < other.number and one.state not in (State.PARKED, State.HELD)


def _num_resident(sequence: SequenceState) -> int:
    return 0 if sequence.table is None else sequence.table.num_resident
