"""The counters of tenants and share groups, as the core collects them."""

import zmq

from engine import ipc
from engine.mailbox import FrameMailbox
from engine.request import TenantId
from engine.stats import ShareGroupUse, collect
from tests.engine.costs import set_costs
from tests.engine.world import BLOCK_BYTES, ShortOutputs, World

PREFIX = [(7 * place) % 900 for place in range(18)]


def sharing(**limits: int) -> World:
    """Return a world with a tenant that shares a prefix of four whole blocks and two tokens more."""
    world = World(block_size=4, budget=64)
    world.policy("minnow", share_groups=("bank",))
    world.share("bank", PREFIX, **limits)
    return world


def group(world: World) -> ShareGroupUse:
    """Collect, and return the only group."""
    (use,) = collect(world.scheduler).share_groups
    return use


def test_a_share_group_shows_what_is_registered_before_anybody_uses_it() -> None:
    """Tokens count in whole blocks: the rest of a prefix is never shared."""
    world = sharing()
    world.share("bank", PREFIX, [*PREFIX, *PREFIX])
    use = group(world)
    assert (use.name, use.num_prefixes, use.prefix_tokens) == ("bank", 2, 16 + 36)
    assert use.kv_bytes == use.kv_peak_bytes == use.kv_cached_bytes == 0


def test_a_share_groups_account_is_its_own() -> None:
    """In use while a request runs on it, cached afterwards; the tenant's account has the rest."""
    world = sharing()
    world.submit("minnow", [*PREFIX, 1, 2, 3], 6)
    world.step()
    use = group(world)
    assert (use.kv_bytes, use.kv_cached_bytes) == (4 * BLOCK_BYTES, 0)
    world.run()
    use = group(world)
    assert (use.kv_bytes, use.kv_cached_bytes) == (4 * BLOCK_BYTES, 4 * BLOCK_BYTES)


def test_the_peak_starts_again_with_each_collection() -> None:
    """A lowered limit shows at once in the use, and in the peak of the period after."""
    world = sharing()
    world.submit("minnow", [*PREFIX, 1, 2, 3], 6)
    world.run()
    assert group(world).kv_peak_bytes == 4 * BLOCK_BYTES
    world.share("bank", PREFIX, blocks=0, soft=0)
    world.step()
    use = group(world)
    assert (use.kv_bytes, use.kv_peak_bytes) == (0, 4 * BLOCK_BYTES)
    assert group(world).kv_peak_bytes == 0


def test_a_removed_group_is_not_shown() -> None:
    """From the removal on, even while its blocks are still held."""
    world = sharing()
    world.submit("minnow", [*PREFIX, 1, 2, 3], 6)
    world.step()
    world.share("bank")
    assert collect(world.scheduler).share_groups == ()


def test_share_groups_cross_the_link() -> None:
    """The frame has the same figures."""
    world = sharing()
    world.submit("minnow", [*PREFIX, 1, 2, 3], 6)
    world.run()
    frame = collected(world)
    held = 4 * BLOCK_BYTES
    assert frame.share_groups == [
        ipc.ShareGroupUse(
            name="bank", kv_bytes=held, kv_peak_bytes=held, kv_cached_bytes=held, num_prefixes=1, prefix_tokens=16
        )
    ]
    assert [use.tenant for use in frame.tenants] == ["minnow"]


def collected(world: World) -> ipc.StatsFrame:
    """Collect, and return what crosses the link."""
    with zmq.Context() as context, context.socket(zmq.PAIR) as front, context.socket(zmq.PAIR) as core:
        front.bind("inproc://link")
        core.connect("inproc://link")
        FrameMailbox(core).stats(collect(world.scheduler))
        assert front.poll(5000)
        frame = ipc.decode_to_front(front.recv())
    assert isinstance(frame, ipc.StatsFrame)
    return frame


def test_a_tenants_service_wait_and_losses_cross_the_link() -> None:
    """A whale of weight 2 borrows ten blocks, loses a place to the minnow's guarantee, and waits for it."""
    world = World(num_blocks=20, block_size=4, budget=128)
    world.policy("whale", soft=10, weight=2.0)
    world.policy("minnow", soft=8)
    world.scheduler.roster.tenant(TenantId("whale")).lengths = ShortOutputs()
    for _ in range(2):
        world.submit("whale", 38, 8)
    world.step(1.0)
    (whale, _) = collected(world).tenants
    assert (whale.kv_borrowed_bytes, whale.above_soft_seconds, whale.weight) == (10 * BLOCK_BYTES, 1.0, 2.0)
    assert whale.service == 2 * 38 + 2 * 2
    world.submit("minnow", 31, 1)
    world.step(1.0)
    frame = collected(world)
    (whale, _) = frame.tenants
    assert (whale.num_preemptions, whale.running, whale.queued, whale.oldest_wait_seconds) == (1, 1, 1, 1.0)
    (pair,) = frame.interference
    assert (pair.by, pair.of, pair.num_preemptions) == ("minnow", "whale", 1)
    assert collected(world).interference == []
    world.run()
    frame = collected(world)
    whale = frame.tenants[0]
    assert whale.recomputed_tokens == frame.interference[0].recomputed_tokens > 0
    assert whale.service == 2 * 38 + 2 * 2 * 8
    assert frame.pressure is not None
    assert 0.0 < frame.pressure.score < 1.0


def test_host_memory_shows_what_was_moved_and_why() -> None:
    """Slabs in use, bytes moved each way, and the decisions; the tenant's use is its own."""
    world = set_costs(World(num_blocks=16, block_size=4, budget=64, num_slabs=20), 1.0)
    world.policy("whale", blocks=16, slabs=12)
    world.policy("minnow", blocks=16, slabs=12)
    stats = collect(world.scheduler)
    assert (stats.host_bytes_total, stats.host_bytes_used, stats.swapped_out_bytes) == (20 * BLOCK_BYTES, 0, 0)
    request = world.submit("whale", 40, 12)
    for _ in range(3):
        world.step()
    world.policy("whale", blocks=2, slabs=12)
    while world.held("whale") or world.cached("whale") > 2:
        world.step()
    world.policy("whale", blocks=16, slabs=12)
    while request not in world.finished:
        world.step()
    stats = collect(world.scheduler)
    assert stats.swapped_in_bytes == 8 * BLOCK_BYTES
    assert stats.host_bytes_used == stats.swapped_out_bytes >= 8 * BLOCK_BYTES  # some was copied out ahead of its need
    used = stats.host_bytes_used
    assert {use.tenant: use.host_bytes for use in stats.tenants} == {"whale": used, "minnow": 0}
    assert (stats.swaps.num_swapped, stats.swaps.num_recomputed) == (1, 0)
    frame = collected(world)
    assert (frame.host_bytes_total, frame.host_bytes_used) == (20 * BLOCK_BYTES, used)
    assert (frame.swapped_out_bytes, frame.swapped_in_bytes) == (used, 8 * BLOCK_BYTES)
    assert {use.tenant: use.host_bytes for use in frame.tenants} == {"whale": used, "minnow": 0}
    world.submit("minnow", 4, 1)
    assert stats.swaps == collect(world.scheduler).swaps, "what was collected stays as it was"
