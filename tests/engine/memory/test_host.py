"""The host tier against a model of it: what is there, whose, in which slab, and what a runner's memory would hold."""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from engine.errors import InvariantError
from engine.memory.eviction.base import BlockKey
from engine.memory.tiers.host import HostTier
from engine.request import BlockId, SequenceId, SlabId, TenantId

TENANTS = (TenantId("minnow"), TenantId("whale"))
NUM_KEYS = 10  # of each tenant


def key(tenant: TenantId, number: int) -> BlockKey:
    """Return the key of a tenant's block."""
    return BlockKey(f"{tenant} {number}".encode())


class Machine(RuleBasedStateMachine):
    """Blocks of two tenants leave the device, are claimed, loaded and forgotten; an arena is copied to and from.

    A block's id is that of the content that it had last: `device` says what, `arena` what slabs hold.
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
        self.next_sequence = 0

    @rule(tenant=st.sampled_from(TENANTS), numbers=st.lists(st.integers(0, NUM_KEYS - 1), min_size=1, unique=True))
    def claim(self, tenant: TenantId, numbers: list[int]) -> None:
        """A sequence is preempted; it claims as many of its blocks as there is room for."""
        keys: list[BlockKey] = []
        claimed = {one for _, held in self.claims.values() for one in held}
        room = self.host.room(tenant)
        mine = sum(one.startswith(tenant.encode()) for one in claimed)
        assert room == max(0, min(self.ceilings[tenant] - mine, self.host.num_slabs - len(claimed)))
        for number in numbers:
            one = key(tenant, number)
            if self.host.num_unclaimed([*keys, one]) <= room:
                keys.append(one)
        if keys and self.ceilings[tenant] and self.host.num_slabs:
            sequence = SequenceId(self.next_sequence)
            self.next_sequence += 1
            self.host.claim(sequence, tenant, keys)
            self.claims[sequence] = (tenant, keys)

    @rule(choice=st.integers(0, 20))
    def release(self, choice: int) -> None:
        """A sequence is back, or gone."""
        if self.claims:
            sequence = list(self.claims)[choice % len(self.claims)]
            self.host.release(sequence)
            del self.claims[sequence]
        self.host.release(SequenceId(-1))

    @rule(tenant=st.sampled_from(TENANTS), number=st.integers(0, NUM_KEYS - 1), block=st.integers(0, 11))
    def evict(self, tenant: TenantId, number: int, block: int) -> None:
        """A block leaves the device: one that is being loaded, or one that holds whatever."""
        one, at = key(tenant, number), BlockId(block)
        if at in self.loading:
            one = self.loading.pop(at)
            tenant = TenantId(one.decode().split()[0])
        elif one in self.loading.values():
            return  # a block is on the device once
        elif self.device.get(at) is None:
            self.device[at] = one
        else:
            known = self.device[at]
            assert known is not None
            one, tenant = known, TenantId(known.decode().split()[0])
        before, claimed = self.contents(), any(one in keys for _, keys in self.claims.values())
        self.host.evicted(one, at, by=TENANTS[0], of=tenant)
        after = self.contents()
        assert one in after or one not in before
        if one in after and one not in before:
            assert claimed, "what nobody waits for is not stored"

    @rule(tenant=st.sampled_from(TENANTS), number=st.integers(0, NUM_KEYS - 1), block=st.integers(6, 11))
    def load(self, tenant: TenantId, number: int, block: int) -> None:
        """A block is found and loaded, into one that nothing else is loaded into."""
        one, at = key(tenant, number), BlockId(block)
        found = self.host.find([one], 0, 1)
        assert found == (one in self.contents())
        if at in self.loading or one in self.loading.values():
            return
        assert self.host.load(one, at) is bool(found)
        if found:
            self.loading[at] = one
            self.device[at] = None

    @rule()
    def take(self) -> None:
        """A plan is taken: stores, then loads; each brings what it should."""
        moves = self.host.take()
        assert Counter(moves.needs or ()).total() == len(moves.stores)
        assert len({move.slab for move in moves.stores}) == len(moves.stores)
        for block, slab in moves.stores:
            self.arena[slab] = self.device[block]
            self.erased.discard(slab)
        for block, slab in moves.loads:
            assert self.arena[slab] == self.loading.pop(block)  # also of an owner who has gone since it was planned
        assert not self.loading
        self.device.clear()

    @rule(limit=st.integers(1, 4))
    def wipe(self, limit: int) -> None:
        """The runner overwrites what the gone have left; between two plans."""
        self.take()
        for slab in self.host.take_dirty(limit):
            self.arena[slab] = None
            self.erased.discard(slab)

    @rule(tenant=st.sampled_from(TENANTS), ceiling=st.integers(0, 12))
    def limit(self, tenant: TenantId, ceiling: int) -> None:
        """An operator moves a ceiling: it holds at once."""
        self.ceilings[tenant] = ceiling
        self.host.limit(tenant, ceiling)

    @rule(tenant=st.sampled_from(TENANTS))
    def forget(self, tenant: TenantId) -> None:
        """A tenant is taken off the worker: nothing of it is found, and its slabs are to be overwritten."""
        self.erased |= {slab for one, slab in self.host.blocks() if one.startswith(tenant.encode())}
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

    def contents(self) -> set[BlockKey]:
        """Return what can be found."""
        return {
            key(tenant, number)
            for tenant in TENANTS
            for number in range(NUM_KEYS)
            if self.host.find([key(tenant, number)], 0, 1)
        }


TestHostTier = Machine.TestCase
TestHostTier.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)


def make_host(num_slabs: int = 4, ceiling: int = 4) -> HostTier:
    """Return a tier with a ceiling for the minnow, who has stored two blocks that a sequence waits for."""
    host = HostTier(num_slabs)
    host.limit(TENANTS[0], ceiling)
    keys = [key(TENANTS[0], number) for number in range(2)]
    host.claim(SequenceId(1), TENANTS[0], keys)
    for number in (1, 0):
        host.evicted(keys[number], BlockId(number), by=TENANTS[1], of=TENANTS[0])
    return host


def test_counts_for_whom_blocks_were_moved_out() -> None:
    """The pair of who needed and whose they were comes with the moves."""
    moves = make_host().take()
    assert moves.needs == Counter({(TENANTS[1], TENANTS[0]): 2})
    assert [move.block for move in moves.stores] == [1, 0]
    assert HostTier(4).take() == ((), (), None)


def test_claims_twice_are_a_mistake() -> None:
    """A sequence has one claim at most."""
    host = make_host()
    with pytest.raises(InvariantError, match="twice"):
        host.claim(SequenceId(1), TENANTS[0], [])


@pytest.mark.parametrize("field", ["_idle", "_claimed", "_stores", "_leaving", "_loading", "_blocks"])
def test_audit_finds(field: str) -> None:
    """Whatever is changed behind the tier's back, the audit says so."""
    host = make_host()
    host.audit()
    changed = getattr(host, field)
    if field == "_loading":
        changed.add(SlabId(0))
    elif field == "_claimed":
        changed[key(TENANTS[0], 0)] += 1
    elif field == "_idle":
        changed[key(TENANTS[0], 0)] = None
    elif field == "_blocks":
        changed.popitem()
    elif field == "_stores":
        changed[SlabId(3)] = changed[SlabId(0)]
    else:
        changed[SlabId(0)] = True
    with pytest.raises(InvariantError):
        host.audit()


def full_host() -> tuple[HostTier, list[BlockKey]]:
    """Return a tier of two slabs, both idle and taken, and the keys: of what is there, and of two blocks more."""
    host = make_host(num_slabs=2)
    host.take()
    host.release(SequenceId(1))
    return host, [key(TENANTS[0], number) for number in range(4)]


def test_a_slab_is_not_stored_to_while_a_load_from_it_is_planned() -> None:
    """Stores come first: who gives it up in the plan that loads from it leaves it for the next one."""
    host, keys = full_host()
    host.load(keys[0], BlockId(8))
    host.load(keys[1], BlockId(9))
    host.claim(SequenceId(2), TENANTS[0], keys[2:])
    host.evicted(keys[2], BlockId(2), by=TENANTS[0], of=TENANTS[0])
    moves = host.take()
    assert not moves.stores
    assert len(moves.loads) == 2
    host.evicted(keys[3], BlockId(3), by=TENANTS[0], of=TENANTS[0])
    assert len(host.take().stores) == 1
    host.audit()


def test_a_load_into_a_block_that_is_given_up_is_not_made() -> None:
    """What would have been there is in its slab still, and is not stored from where it never was."""
    host, keys = full_host()
    host.load(keys[0], BlockId(8))
    host.evicted(keys[0], BlockId(8), by=TENANTS[0], of=TENANTS[0])
    assert not host.is_loading(BlockId(8))
    assert host.take() == ((), (), None)
    assert host.find(keys, 0, 2) == 2


def test_a_slab_that_was_given_up_is_free_when_its_load_is_dropped() -> None:
    """The block that it was to be loaded into has been given up as well; claimed or not, there is nothing to store."""
    host, keys = full_host()
    host.load(keys[0], BlockId(8))
    host.limit(TENANTS[0], 0)
    host.limit(TENANTS[0], 4)
    assert host.find(keys, 0, 1) == 0
    host.claim(SequenceId(2), TENANTS[0], keys[:1])
    host.evicted(keys[0], BlockId(8), by=TENANTS[0], of=TENANTS[0])
    host.audit()
    assert host.take() == ((), (), None)
    assert host.find(keys, 0, 1) == 0


def test_what_is_stored_can_be_loaded_in_the_same_plan() -> None:
    """And if it is given up once more in between, the load still finds what the store has brought."""
    host = make_host()
    keys = [key(TENANTS[0], number) for number in range(2)]
    assert host.load(keys[0], BlockId(8))
    host.limit(TENANTS[0], 0)
    moves = host.take()
    assert {move.slab for move in moves.loads} == {move.slab for move in moves.stores}
    assert host.num_used == 0
    host.audit()
