"""Fleet-wide limits divide into grants that never exceed them."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.controller.grants import divide, divide_limit, divide_places
from gateway.controller.holders import GroupGrant, GroupPolicy, Holder, Policy, limits, share_group, tenant
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


@st.composite
def groups(draw: st.DrawFn) -> GroupPolicy:
    """Draw a share group's policy with soft <= hard."""
    hard = draw(LIMITS)
    return GroupPolicy(namespace=b"n" * 32, kv_soft_bytes=draw(st.integers(0, hard)), kv_hard_bytes=hard, prefixes={})


HOLDERS = st.dictionaries(st.text("xyz", min_size=1).map(tenant), policies(), max_size=3) | st.dictionaries(
    st.text("xyz", min_size=1).map(share_group), groups(), max_size=3
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


@given(held_by=HOLDERS, pools=POOLS)
def test_grants_never_exceed_the_policy(held_by: dict[Holder, Policy], pools: dict[str, int]) -> None:
    """Over all workers, bytes and concurrency sum to no more than the policy, and soft never passes hard."""
    grants = divide(held_by, pools)
    assert set(grants) == set(pools)
    for holder, policy in held_by.items():
        held = [grants[worker][holder] for worker in pools]
        for parts, limit in zip(zip(*(grant.amounts for grant in held), strict=True), limits(policy), strict=False):
            assert sum(parts) <= limit
        assert all(grant.kv_soft_bytes <= grant.kv_hard_bytes for grant in held)


@given(policy=policies(), pool=st.integers(0, 1 << 40))
def test_one_worker_gets_the_policy(policy: PolicyView, pool: int) -> None:
    """With exactly one worker its grant is the policy."""
    grant = divide({tenant("t"): policy}, {"only": pool})["only"][tenant("t")]
    for field in (*SHARED, "weight", "max_context", "max_output", "priority"):
        assert getattr(grant, field) == getattr(policy, field)


@given(group=groups(), pool=st.integers(0, 1 << 40))
def test_one_worker_gets_the_group(group: GroupPolicy, pool: int) -> None:
    """With exactly one worker a share group's grant is the whole of its limits, under the group's own namespace."""
    expected = GroupGrant(
        namespace=group.namespace, kv_soft_bytes=group.kv_soft_bytes, kv_hard_bytes=group.kv_hard_bytes
    )
    assert divide({share_group("g"): group}, {"only": pool}) == {"only": {share_group("g"): expected}}


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
