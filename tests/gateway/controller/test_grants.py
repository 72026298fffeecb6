"""Fleet-wide limits divide into grants that never exceed them."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.controller.grants import divide, divide_limit, divide_places
from tenants.contracts import PolicyView

POOLS = st.dictionaries(st.text("abcdef-0123456789", min_size=1, max_size=6), st.integers(0, 1 << 40), max_size=6)
SHARED = ("kv_soft_bytes", "kv_hard_bytes", "max_running", "max_queued")
LIMITS = st.integers(0, 1 << 44)


@st.composite
def policies(draw: st.DrawFn) -> PolicyView:
    """Draw a policy with soft <= hard."""
    hard = draw(LIMITS)
    return PolicyView(
        version=draw(st.integers(1, 1000)),
        weight=draw(st.floats(0.1, 100)),
        kv_soft_bytes=draw(st.integers(0, hard)),
        kv_hard_bytes=hard,
        max_running=draw(st.integers(0, 64)),
        max_queued=draw(st.integers(0, 300)),
        rpm=7,
        tpm=9,
        max_context=draw(st.integers(1, 1 << 20)),
        max_output=draw(st.integers(1, 1 << 20)),
        priority=draw(st.sampled_from(["interactive", "standard", "batch"])),
    )


@given(limit=LIMITS, pools=POOLS.filter(bool))
def test_parts_sum_to_the_limit(limit: int, pools: dict[str, int]) -> None:
    """Nothing is lost and nothing is given twice."""
    assert sum(divide_limit(limit, pools).values()) == limit


@given(limit=LIMITS, pools=POOLS.filter(lambda pools: any(pools.values())))
def test_parts_follow_the_pools(limit: int, pools: dict[str, int]) -> None:
    """Each part is within one of its exact proportion."""
    total = sum(pools.values())
    for worker, part in divide_limit(limit, pools).items():
        assert abs(part * total - limit * pools[worker]) < total


@given(limit=LIMITS, pools=POOLS, seed=st.randoms())
def test_order_does_not_matter(limit: int, pools: dict[str, int], seed: object) -> None:
    """Two controllers that read the workers in another order divide alike."""
    shuffled = list(pools.items())
    seed.shuffle(shuffled)  # type: ignore[attr-defined]
    assert divide_limit(limit, dict(shuffled)) == divide_limit(limit, pools)


@given(tenants=st.dictionaries(st.text("xyz", min_size=1), policies(), max_size=4), pools=POOLS)
def test_grants_never_exceed_the_policy(tenants: dict[str, PolicyView], pools: dict[str, int]) -> None:
    """Over all workers, bytes and concurrency sum to no more than the policy, and soft never passes hard."""
    grants = divide(tenants, pools)
    assert set(grants) == set(pools)
    for tenant, policy in tenants.items():
        held = [grants[worker][tenant] for worker in pools]
        assert sum(grant.kv_hard_bytes for grant in held) <= policy.kv_hard_bytes
        assert sum(grant.kv_soft_bytes for grant in held) <= policy.kv_soft_bytes
        assert sum(grant.max_running for grant in held) <= policy.max_running
        assert sum(grant.max_queued for grant in held) <= policy.max_queued
        assert all(grant.kv_soft_bytes <= grant.kv_hard_bytes for grant in held)


@given(policy=policies(), pool=st.integers(0, 1 << 40))
def test_one_worker_gets_the_policy(policy: PolicyView, pool: int) -> None:
    """With exactly one worker its grant is the policy."""
    grant = divide({"t": policy}, {"only": pool})["only"]["t"]
    for field in (*SHARED, "weight", "max_context", "max_output", "priority"):
        assert getattr(grant, field) == getattr(policy, field)


@given(spare=st.integers(0, 1000), pools=POOLS.filter(bool))
def test_no_worker_is_left_without_a_place(spare: int, pools: dict[str, int]) -> None:
    """However small a pool, its worker may run a request of the tenant, for it may be the only one of its model."""
    limit = len(pools) + spare
    places = divide_places(limit, pools)
    assert sum(places.values()) == limit
    assert min(places.values()) >= 1


def test_too_few_places_go_to_the_largest_pools() -> None:
    """With fewer places than workers none is given twice."""
    assert divide_places(1, {"a": 1, "b": 7, "c": 2}) == {"a": 0, "b": 1, "c": 0}
