"""The host tier against a model of it: what is there, whose, in which slab, and what a runner's memory would hold."""

from collections import Counter, deque

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from engine.memory.eviction.base import BlockKey
from engine.memory.tiers.host import HostTier
from engine.memory.tiers.hosted import Presence
from engine.memory.tiers.moves import Moves
from engine.request import BlockId, SequenceId, SlabId, TenantId
from tests.engine.memory.hosts import TENANTS, content, key, owner_of

NUM_KEYS = 10  # of each tenant


class Machine(RuleBasedStateMachine):
    """Blocks of two tenants leave the device, are claimed, loaded and forgotten; an arena is copied to and from.

    A block's id is that of the content that it had last: `device` says what, `arena` what slabs hold. Plans are
    committed some time after they were taken, copies beside them end whenever they do.
    """

    @initialize(num_slabs=st.integers(0, 12), ceilings=st.tuples(st.integers(0, 12), st.integers(0, 12)))
    def start(self, num_slabs: int, ceilings: tuple[int, int]) -> None:
        """Choose sizes."""
        self.host = HostTier(num_slabs)
        self.ceilings = dict(zip(TENANTS, ceilings, strict=True))
        for tenant, ceiling in self.ceilings.items():
            self.host.limit(tenant, ceiling)
        self.claims: dict[SequenceId, tuple[TenantId, list[BlockKey]]] = {}
        self.device: dict[BlockId, BlockKey | None] = {}
        self.loading: dict[BlockId, BlockKey] = {}  # planned, not yet copied
        self.arena: dict[SlabId, BlockKey | None] = {}
        self.erased: set[SlabId] = set()  # of owners that are gone: not to be read before they are overwritten
        self.stale: set[SlabId] = set()  # held nobody's bytes when all such were to be overwritten, and was not yet
        self.launched: deque[Moves] = deque()  # not committed
        self.coming: dict[SlabId, BlockKey] = {}  # by copies beside the steps
        self.held: dict[SlabId, BlockKey] = {}  # for copies from them
        self.next_sequence = 0

    @rule(tenant=st.sampled_from(TENANTS), numbers=st.lists(st.integers(0, NUM_KEYS - 1), min_size=1, unique=True))
    def claim(self, tenant: TenantId, numbers: list[int]) -> None:
        """A sequence is preempted; it claims as many of its blocks as there is room for."""
        keys: list[BlockKey] = []
        claimed = {one for _, held in self.claims.values() for one in held}
        room = self.host.claims.room(tenant)
        mine = sum(owner_of(one) == tenant for one in claimed)
        assert room == max(0, min(self.ceilings[tenant] - mine, self.host.num_slabs - len(claimed)))
        for number in numbers:
            one = key(tenant, number)
            if self.host.claims.num_new([*keys, one]) <= room:
                keys.append(one)
        if keys and self.ceilings[tenant] and self.host.num_slabs:
            sequence = SequenceId(self.next_sequence)
            self.next_sequence += 1
            self.host.claims.claim(sequence, tenant, keys)
            self.claims[sequence] = (tenant, keys)

    @rule(choice=st.integers(0, 20))
    def release(self, choice: int) -> None:
        """A sequence is back, or gone."""
        if self.claims:
            sequence = list(self.claims)[choice % len(self.claims)]
            self.host.claims.release(sequence)
            del self.claims[sequence]
        self.host.claims.release(SequenceId(-1))

    @rule(
        tenant=st.sampled_from(TENANTS),
        number=st.integers(0, NUM_KEYS - 1),
        block=st.integers(0, 11),
        last_use=st.integers(1, 9),
        hits=st.integers(0, 3),
    )
    def evict(self, tenant: TenantId, number: int, block: int, last_use: int, hits: int) -> None:
        """A block leaves the device: one that is being loaded, or one that holds whatever."""
        one, at = key(tenant, number), BlockId(block)
        if at in self.loading:
            one = self.loading.pop(at)
        elif one in self.loading.values():
            return  # a block is on the device once
        elif self.device.get(at) is None:
            self.device[at] = one
        else:
            known = self.device[at]
            assert known is not None
            one = known
        of = owner_of(one)
        before = self.claimed_here()
        known_of_it = content(last_use, hits) if self.host.keeps(of) else None
        self.host.evicted(one, at, known_of_it, by=TENANTS[0], of=of)
        assert self.claimed_here() >= before, "what a sequence waits for stays"

    @rule(tenant=st.sampled_from(TENANTS), number=st.integers(0, NUM_KEYS - 1), block=st.integers(6, 11))
    def load(self, tenant: TenantId, number: int, block: int) -> None:
        """A block is found and loaded, into one that nothing else is loaded into."""
        one, at = key(tenant, number), BlockId(block)
        found = self.host.find([one], 0, 1)
        assert found == (one in self.findable())
        if at in self.loading or one in self.loading.values():
            return
        assert self.host.load(one, at) is bool(found)
        if found:
            self.loading[at] = one
            if at not in self.host.next.stored_blocks():  # else that comes first
                self.device[at] = None

    @rule()
    def take(self) -> None:
        """A plan is taken and launched: stores, then loads; each brings what it should."""
        moves = self.host.take()
        assert Counter(moves.needs or ()).total() == len(moves.stores)
        assert len({move.slab for move in moves.stores}) == len(moves.stores)
        for block, slab in moves.stores:
            assert slab not in self.coming
            assert slab not in self.held
            self.write(slab, self.device[block])
        for block, slab in moves.loads:
            assert self.arena[slab] == self.loading.pop(block)  # also of an owner who has gone since it was planned
        assert not self.loading
        self.device.clear()
        self.launched.append(moves)

    @rule()
    def commit(self) -> None:
        """The oldest plan's copies have been made."""
        if self.launched:
            moves = self.launched.popleft()
            self.host.landed(moves.stores, moves.loads)

    @rule(tenant=st.sampled_from(TENANTS), number=st.integers(0, NUM_KEYS - 1), known=st.booleans())
    def expect(self, tenant: TenantId, number: int, known: bool) -> None:
        """A block is copied beside the steps, or read from the disk."""
        one = key(tenant, number)
        is_here = self.host.get(one) is not None
        slab = self.host.expect(one, tenant, content(5.0) if known else None)
        if slab is not None:
            assert not is_here
            assert not any(move.slab == slab for moves in self.launched for move in (*moves.stores, *moves.loads))
            assert slab not in self.coming
            assert slab not in self.held
            self.coming[slab] = one

    @rule(choice=st.integers(0, 20), ok=st.booleans())
    def arrive(self, choice: int, ok: bool) -> None:
        """Such a copy has ended, well or not."""
        if self.coming:
            slab = list(self.coming)[choice % len(self.coming)]
            one = self.coming.pop(slab)
            entry = self.host.get(one)
            is_wanted = entry is not None and entry.slab == slab
            if ok:
                self.write(slab, one)
            self.host.arrived(slab, ok=ok)
            assert (one in self.findable()) >= (ok and is_wanted)

    @rule(tenant=st.sampled_from(TENANTS), number=st.integers(0, NUM_KEYS - 1))
    def hold(self, tenant: TenantId, number: int) -> None:
        """A block is copied from its slab, to the disk or to the device."""
        entry = self.host.get(key(tenant, number))
        if entry is not None and entry.presence is Presence.READY and entry.slab not in self.held:
            self.held[self.host.hold(entry)] = entry.key

    @rule(choice=st.integers(0, 20))
    def let_go(self, choice: int) -> None:
        """That copy has ended: all the time the slab has held what it did."""
        if self.held:
            slab = list(self.held)[choice % len(self.held)]
            assert self.arena[slab] == self.held.pop(slab)
            self.host.let_go(slab)

    @rule(limit=st.integers(1, 4))
    def wipe(self, limit: int) -> None:
        """The runner overwrites what the gone have left; between two plans."""
        self.take()
        for slab in self.host.take_dirty(limit):
            assert slab not in self.coming
            assert slab not in self.held
            self.write(slab, None)

    @rule()
    def soil(self) -> None:
        """Something is erased: whatever is nobody's, or is not written over yet, is to be overwritten."""
        for slab, one in self.arena.items():
            entry = None if one is None else self.host.get(one)
            if one is not None and (entry is None or entry.slab != slab):
                self.stale.add(slab)
        self.host.soil()

    def write(self, slab: SlabId, one: BlockKey | None) -> None:
        """Have other bytes in a slab."""
        self.arena[slab] = one
        self.erased.discard(slab)
        self.stale.discard(slab)

    @rule(tenant=st.sampled_from(TENANTS), ceiling=st.integers(0, 12))
    def limit(self, tenant: TenantId, ceiling: int) -> None:
        """An operator moves a ceiling: it holds at once."""
        self.ceilings[tenant] = ceiling
        self.host.limit(tenant, ceiling)

    @rule(tenant=st.sampled_from(TENANTS))
    def forget(self, tenant: TenantId) -> None:
        """A tenant is taken off the worker: nothing of it is found, and its slabs are to be overwritten."""
        self.erased |= {slab for one, slab in self.host.blocks() if owner_of(one) == tenant}
        self.ceilings[tenant] = 0
        self.host.forget(tenant)
        assert self.host.used(tenant) == 0

    @invariant()
    def holds(self) -> None:
        """Counts, ceilings and contents are right, and nothing erased is free before it is overwritten."""
        if not hasattr(self, "host"):
            return
        self.host.audit()
        for tenant, ceiling in self.ceilings.items():
            assert self.host.used(tenant) <= ceiling
        assert self.host.num_used <= self.host.num_slabs
        for one, slab in self.host.blocks():
            assert self.arena[slab] == one
            assert slab not in self.erased
        for slab, one in self.held.items():
            assert self.arena[slab] == one
        assert not (self.stale and self.host.slabs.is_clean), "something is left of what was erased"
        shares = self.host._shares
        most = [shares.overage(account) for account in shares if account.num_idle]
        largest = shares.largest()
        assert (largest is None) == (not most)
        assert largest is None or shares.overage(largest) == max(most)

    def findable(self) -> set[BlockKey]:
        """Return what can be loaded."""
        keys = [key(tenant, number) for tenant in TENANTS for number in range(NUM_KEYS)]
        return {one for one in keys if self.host.find([one], 0, 1)}

    def claimed_here(self) -> set[BlockKey]:
        """Return what is here and claimed."""
        return {one for _, keys in self.claims.values() for one in keys if self.host.get(one) is not None}


TestHostTier = Machine.TestCase
TestHostTier.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
