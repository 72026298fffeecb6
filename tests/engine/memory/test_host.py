"""The host tier against a model of it: what is there, whose, in which slab, and what a runner's memory would hold."""

from collections import Counter, deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from engine.errors import InvariantError
from engine.memory.eviction.base import BlockKey, CachedNode
from engine.memory.tiers.host import HostTier
from engine.memory.tiers.hosted import Content, Presence
from engine.memory.tiers.moves import URGENT_BLOCKS, Moves
from engine.request import BlockId, SequenceId, SlabId, TenantId
from engine.step import SlabMove

TENANTS = (TenantId("minnow"), TenantId("whale"))
NUM_KEYS = 10  # of each tenant


def key(tenant: TenantId, number: int) -> BlockKey:
    """Return the key of a tenant's block."""
    return BlockKey(f"{tenant} {number}".encode())


def owner_of(one: BlockKey) -> TenantId:
    """Return whose key it is."""
    return TenantId(one.decode().split()[0])


def content(last_use: float = 1.0, hits: int = 0, depth: int = 0) -> Content:
    """Return what is known of a block."""
    node = CachedNode(BlockId(0), last_use, hits, 0, 0, depth, 4 * (depth + 1))
    return Content(BlockKey(b"before"), bytes(12), node)


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


def make_host(num_slabs: int = 4, ceiling: int = 4) -> HostTier:
    """Return a tier with a ceiling for the minnow, who has stored two blocks that a sequence waits for."""
    host = HostTier(num_slabs)
    host.limit(TENANTS[0], ceiling)
    keys = [key(TENANTS[0], number) for number in range(2)]
    host.claims.claim(SequenceId(1), TENANTS[0], keys)
    for number in (1, 0):
        evict(host, keys[number], number)
    return host


def evict(host: HostTier, one: BlockKey, block: int, known: Content | None = None) -> None:
    """Let a block leave the device, for the whale's need."""
    host.evicted(one, BlockId(block), known or content(), by=TENANTS[1], of=owner_of(one))


def commit(host: HostTier) -> Moves:
    """Take a plan and commit it."""
    moves = host.take()
    host.landed(moves.stores, moves.loads)
    return moves


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
        host.claims.claim(SequenceId(1), TENANTS[0], [])


@pytest.mark.parametrize("field", ["idle", "_counts", "_stores", "_holds", "_loads", "_blocks", "ceiling", "num_idle"])
def test_audit_finds(field: str) -> None:
    """Whatever is changed behind the tier's back, the audit says so."""
    host = make_host()
    host.audit()
    (account,) = host.accounts()
    entry = host.get(key(TENANTS[0], 0))
    assert entry is not None
    if field == "idle":
        entry.idle = True
    elif field == "_counts":
        host.claims._counts[entry.key] += 1
    elif field == "_stores":
        host.next._stores[SlabId(3)] = host.next._stores[SlabId(0)]
    elif field == "_holds":
        host.slabs._holds[SlabId(3)] = 1
    elif field == "_loads":
        host.next._loads[BlockId(3)] = SlabId(0)
    elif field == "_blocks":
        host._blocks.popitem()
    else:
        setattr(account, field, 7)
    with pytest.raises(InvariantError):
        host.audit()


def full_host() -> tuple[HostTier, list[BlockKey]]:
    """Return a tier of two slabs, both idle and taken, and the keys: of what is there, and of two blocks more."""
    host = make_host(num_slabs=2)
    commit(host)
    host.claims.release(SequenceId(1))
    return host, [key(TENANTS[0], number) for number in range(4)]


def test_a_slab_is_not_stored_to_before_a_load_from_it_is_over() -> None:
    """Who gives it up in the plan that loads from it leaves it until that one is committed."""
    host, keys = full_host()
    host.load(keys[0], BlockId(8))
    host.load(keys[1], BlockId(9))
    host.claims.claim(SequenceId(2), TENANTS[0], keys[2:])
    evict(host, keys[2], 2)
    moves = host.take()
    assert not moves.stores
    assert len(moves.loads) == 2
    evict(host, keys[3], 3)
    assert not host.take().stores
    host.landed(moves.stores, moves.loads)
    evict(host, keys[3], 3)
    assert len(host.take().stores) == 1
    host.audit()


def test_a_load_into_a_block_that_is_given_up_is_not_made() -> None:
    """What would have been there is in its slab still, and is not stored from where it never was."""
    host, keys = full_host()
    host.load(keys[0], BlockId(8))
    evict(host, keys[0], 8)
    assert not host.next.is_loading(BlockId(8))
    assert host.take() == ((), (), None)
    assert host.find(keys, 0, 2) == 2


def test_a_slab_that_was_given_up_is_free_when_its_load_is_dropped() -> None:
    """The block that it was to be loaded into has been given up as well; claimed or not, there is nothing to store."""
    host, keys = full_host()
    host.load(keys[0], BlockId(8))
    host.limit(TENANTS[0], 0)
    host.limit(TENANTS[0], 4)
    assert host.find(keys, 0, 1) == 0
    host.claims.claim(SequenceId(2), TENANTS[0], keys[:1])
    evict(host, keys[0], 8)
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
    assert {move.slab for move in moves.loads} == {SlabId(1)}
    assert {move.slab for move in moves.loads} <= {move.slab for move in moves.stores}
    assert host.num_used == 0
    host.audit()


def test_a_block_that_is_on_its_way_is_not_found() -> None:
    """Nobody loads from a slab that is still written to, by whatever copy; when it is there, everybody may."""
    host = HostTier(4)
    host.limit(TENANTS[0], 4)
    one = key(TENANTS[0], 0)
    slab = host.expect(one, TENANTS[0], content())
    assert slab is not None
    assert host.find([one], 0, 1) == 0
    assert not host.load(one, BlockId(1))
    host.arrived(slab, ok=True)
    assert host.find([one], 0, 1) == 1


def test_what_could_not_be_read_is_overwritten() -> None:
    """Half a block of somebody's is in the slab."""
    host = HostTier(4)
    host.limit(TENANTS[0], 4)
    slab = host.expect(key(TENANTS[0], 0), TENANTS[0], None)
    assert slab is not None
    host.arrived(slab, ok=False)
    assert host.num_used == 0
    assert host.take_dirty(9) == [slab]
    host.audit()


def test_shared_beginnings_go_last() -> None:
    """Of blocks used at the same time the end of a prompt goes first, and what was found often stays longest."""
    host = HostTier(3)
    host.limit(TENANTS[0], 3)
    keys = [key(TENANTS[0], number) for number in range(9)]
    evict(host, keys[0], 0, content(1.0, hits=5, depth=0))
    evict(host, keys[1], 1, content(1.0, depth=1))
    evict(host, keys[2], 2, content(1.0, depth=2))
    commit(host)
    gone = []
    for number in range(3, 6):
        evict(host, keys[number], number, content(50.0))
        commit(host)
        gone += [one for one in keys[:3] if host.get(one) is None and one not in gone]
    assert gone == [keys[2], keys[1]]
    assert host.get(keys[0]) is not None


def test_what_is_worth_less_than_all_that_is_there_is_not_kept() -> None:
    """A full tier does not give up a block for one that would be the next to go."""
    host, keys = full_host()
    host.value = lambda owner, key, node: node.last_use
    evict(host, keys[2], 2, content(-5.0))
    assert not host.take().stores
    assert host.num_lost == 1
    evict(host, keys[2], 2, content(5.0))
    assert len(host.take().stores) == 1


def test_only_so_many_are_stored_within_a_step_for_nobody() -> None:
    """What sequences wait for is stored whatever it costs; of the rest a plan takes a few."""
    host = HostTier(100)
    host.limit(TENANTS[0], 100)
    keys = [key(TENANTS[0], number) for number in range(URGENT_BLOCKS + 5)]
    host.claims.claim(SequenceId(1), TENANTS[0], keys[-2:])
    for number, one in enumerate(keys):
        evict(host, one, number)
    assert len(host.take().stores) == URGENT_BLOCKS + 2
    evict(host, keys[URGENT_BLOCKS], 1)
    assert len(host.take().stores) == 1


def test_who_is_above_its_share_gives_way() -> None:
    """Ceilings that do not fit together are shared out in proportion; whoever is within its part loses nothing."""
    host = HostTier(8)
    host.limit(TENANTS[0], 8)
    host.limit(TENANTS[1], 8)
    for number in range(8):
        evict(host, key(TENANTS[1], number), number, content(100.0))
    commit(host)
    for number in range(8):
        evict(host, key(TENANTS[0], number), number, content(200.0 + number))
        commit(host)
    assert (host.used(TENANTS[0]), host.used(TENANTS[1])) == (4, 4)
    for number in range(8):
        evict(host, key(TENANTS[1], number), number, content(300.0 + number))
        commit(host)
    assert (host.used(TENANTS[0]), host.used(TENANTS[1])) == (4, 4)


def test_a_demoted_block_goes_first() -> None:
    """Nobody keeps it any more, however often it was found."""
    host = HostTier(2)
    host.limit(TENANTS[0], 2)
    keys = [key(TENANTS[0], number) for number in range(3)]
    evict(host, keys[0], 0, content(9.0, hits=6))
    evict(host, keys[1], 1, content(1.0))
    commit(host)
    entry = host.get(keys[0])
    assert entry is not None
    host.demote(entry)
    evict(host, keys[2], 2, content(9.0))
    assert host.get(keys[0]) is None
    assert host.get(keys[1]) is not None


def test_a_slab_in_use_outlives_its_block() -> None:
    """An owner who goes takes nothing from a copy that is being made; its memory is overwritten behind that."""
    host, keys = full_host()
    entry = host.get(keys[0])
    assert entry is not None
    slab = host.hold(entry)
    host.forget(TENANTS[0])
    assert slab not in host.take_dirty(9)
    host.let_go(slab)
    assert host.take_dirty(9) == [slab]


def test_moves_name_what_is_copied() -> None:
    """A store has the block that was evicted, a load the one that was grown."""
    host, keys = full_host()
    host.load(keys[1], BlockId(7))
    assert host.take().loads == (SlabMove(BlockId(7), SlabId(0)),)
