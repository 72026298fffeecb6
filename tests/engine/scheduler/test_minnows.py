"""Minnows first where memory is short, and the bound of how long a whale lets them pass."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.request import FinishReason, Priority, SequenceId, TenantId
from engine.scheduler.fairness import EAGER_AT, EAGER_FROM, PATIENCE_SECONDS, eagerness, place
from tests.engine.world import World


def hold_pressure(world: World, score: float) -> None:
    """Let the score be what it is said to be."""
    world.scheduler.roster.pressure.score = score
    world.scheduler.roster.pressure.refresh = lambda now: None  # type: ignore[method-assign]  # as it is


def behind(world: World, tenant: str, service: float) -> None:
    """Let a tenant have had so much more service than everybody else."""
    world.scheduler.roster.tenant(TenantId(tenant)).counter += service


@pytest.mark.parametrize(("score", "goes_first"), [(0.0, False), (EAGER_FROM, False), (EAGER_AT, True), (1.0, True)])
def test_a_minnow_passes_a_whale_when_memory_is_short(score: float, goes_first: bool) -> None:
    """Of a tenant that has had more service, its small prompt still goes before the next chunk of a large one."""
    world = World(num_blocks=128, budget=16)
    hold_pressure(world, score)
    for tenant in ("whale", "minnow"):
        world.policy(tenant, blocks=128)
    world.submit("whale", 200, 4)
    world.step()
    minnow = world.submit("minnow", 8, 1)
    behind(world, "minnow", 60)
    world.step()
    assert (minnow in world.finished) == goes_first


def test_a_pool_in_full_use_is_pressure_enough() -> None:
    """Nine tenths of the pool in use for good, and a whale's prompt in work: what is small goes first."""
    world = World(num_blocks=61, budget=8)
    for tenant, soft in (("holder", 46), ("whale", 7), ("minnow", 1)):
        world.policy(tenant, soft=soft, blocks=61)
    world.submit("holder", 170, 14, namespace=b"")
    for _ in range(22):
        world.step(0.0)
    world.submit("whale", 56, 4, namespace=b"")
    for _ in range(4):
        world.step(0.5)
    behind(world, "minnow", 40)
    minnow = world.submit("minnow", 3, 1)
    world.step()
    assert world.scheduler.roster.pressure.score > EAGER_AT - 0.1
    assert minnow in world.finished


def test_a_minnow_does_not_pass_a_better_class() -> None:
    """Classes come before sizes."""
    world = World(num_blocks=128, budget=16)
    hold_pressure(world, 1.0)
    for tenant in ("whale", "minnow"):
        world.policy(tenant, blocks=128, priority=Priority.INTERACTIVE)
    world.submit("whale", 200, 4, priority=Priority.INTERACTIVE)
    world.step()
    minnow = world.submit("minnow", 8, 1, priority=Priority.STANDARD)
    world.step()
    assert minnow not in world.finished


def test_minnows_pass_for_as_much_service_as_the_whale_costs() -> None:
    """A tenant with nothing but small requests gets ahead by one large request, and no further."""
    world = World(num_blocks=256, budget=10, max_context=256)
    hold_pressure(world, 1.0)
    for tenant in ("whale", "minnow"):
        world.policy(tenant, blocks=256)
    whale = world.submit("whale", 200, 1)
    apart = 0.0
    while whale not in world.finished:
        while world.scheduler.roster.tenant(TenantId("minnow")).num_waiting < 4:
            world.submit("minnow", 8, 1)
        world.step(0.0001)
        tenants = world.scheduler.roster.tenants
        apart = max(apart, tenants[TenantId("minnow")].counter - tenants[TenantId("whale")].counter)
    assert 150 < apart <= 200 + 2 + 10


def flood(world: World, count: int, *, size: int, priority: Priority) -> None:
    """Keep a small request of each of so many tenants in line."""
    for number in range(count):
        tenant = world.scheduler.roster.tenant(TenantId(f"minnow-{number}"))
        if tenant.num_waiting == 0:
            world.submit(tenant.name, size, 1, priority=priority, namespace=b"")


@settings(max_examples=20, deadline=None)
@given(
    num_tenants=st.integers(1, 30),
    size=st.integers(1, 8),
    seconds=st.floats(0.01, 0.3),
    ahead=st.booleans(),
    priority=st.sampled_from(Priority),
    weight=st.sampled_from((0.1, 1.0, 10.0)),
)
def test_a_whale_waits_no_longer_than_its_patience(
    num_tenants: int, size: int, seconds: float, ahead: bool, priority: Priority, weight: float
) -> None:
    """Whatever arrives beside it, in as many tenants' names as it may, and whatever its own tenant's weight is.

    Its tenant has had as little service as any: by then it stands where it would stand without pressure.
    """
    world = World(num_blocks=400, budget=16, max_rows=32, ahead=ahead, audit=False)
    hold_pressure(world, 1.0)
    world.policy("whale", blocks=400, priority=priority, weight=weight)
    for number in range(num_tenants):
        world.policy(f"minnow-{number}", blocks=400, priority=priority)
    flood(world, num_tenants, size=size, priority=priority)
    world.step(seconds)
    whale, since = world.submit("whale", 200, 1, priority=priority), world.now
    a_round = -(-num_tenants * size // 16)  # steps until each of the others has had its turn
    while not world.granted.get(whale):
        flood(world, num_tenants, size=size, priority=priority)
        world.step(seconds)
        assert world.now - since <= PATIENCE_SECONDS + (a_round + 2 + ahead) * seconds
    world.run()
    assert world.finished[whale] is FinishReason.LENGTH


def test_eagerness_rises_with_the_score() -> None:
    """Nothing up to the one bound, everything from the other on, in proportion between."""
    scores = (0.0, EAGER_FROM, (EAGER_FROM + EAGER_AT) / 2, EAGER_AT, 1.0)
    assert [eagerness(score) for score in scores] == pytest.approx([0.0, 0.0, 0.5, 1.0, 1.0])


def test_a_place_is_where_its_tenant_will_be_when_it_is_done() -> None:
    """Prompt tokens left and twice the output expected, by weight; less of it the longer it has not been served."""
    world = World(num_blocks=128, budget=16)
    world.policy("whale", blocks=128, weight=2.0)
    whale = world.scheduler.roster.sequences[SequenceId(world.submit("whale", 100, 10))]
    assert place(whale, 0.0, world.now) == 0.0
    assert place(whale, 1.0, world.now) == pytest.approx((100 + 2 * 10) / 2)
    assert place(whale, 0.5, world.now) == pytest.approx((100 + 2 * 10) / 4)
    assert place(whale, 1.0, world.now + PATIENCE_SECONDS / 2) == pytest.approx((100 + 2 * 10) / 4)
    assert place(whale, 1.0, world.now + PATIENCE_SECONDS) == 0.0
    world.step(0.0)
    assert place(whale, 1.0, world.now) == pytest.approx((100 + 2 * 10) / 2)
