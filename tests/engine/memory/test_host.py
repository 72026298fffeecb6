"""Single cases of the host tier: what is stored, found, loaded, kept and given up."""

from collections import Counter

import pytest

from engine.errors import InvariantError
from engine.memory.tiers.host import HostTier
from engine.memory.tiers.moves import URGENT_BLOCKS
from engine.request import BlockId, SequenceId, SlabId
from engine.step import SlabMove
from tests.engine.memory.hosts import TENANTS, commit, content, evict, full_host, key, make_host


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
