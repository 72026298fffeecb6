"""Boosts: limits changed for a time, which end exactly once and put back what is still theirs."""

import uuid
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from tenants import selectors
from tenants.contracts import Actor, BoostView, PolicyView, TenantView, WorkerView
from tenants.errors import Conflict, Invalid, NotFound, PolicyInvalid, StaleVersion
from tenants.models import AuditEvent, Boost, OutboxEvent
from tenants.rules.policy import DEFAULT, changed
from tenants.services.boosts import FIELDS, end_boost, end_due_boosts, put_back, start_boost
from tenants.services.policy import revert_policy, set_policy
from tenants.services.tenants import create_tenant
from tenants.tasks import end_boosts
from tests.tenants.services.test_policy import ACTOR, current
from tests.tenants.services.test_policy_history import change


def hours(number: float) -> datetime:
    """Return the time so many hours from now."""
    return timezone.now() + timedelta(hours=number)


def boost(tenant: TenantView, **more: Any) -> BoostView:
    """Boost a tenant's policy as it is now: twice the weight for an hour, unless said otherwise."""
    values: dict[str, Any] = {
        "tenant_id": tenant.id,
        "expected_version": current(tenant).version,
        "changes": {"weight": 2},
        "ends_at": hours(1),
        "reason": "a demo",
        "actor": ACTOR,
    }
    return start_boost(**values | more)


def test_a_boost_changes_the_policy_and_its_end_brings_it_back(tenant: TenantView) -> None:
    """Both are versions like any other, in history and trail."""
    before = current(tenant)
    made = boost(tenant, changes={"kv_hard_bytes": 1 << 30, "priority": "interactive", "weight": 2})
    during = current(tenant)
    assert (during.version, during.kv_hard_bytes, during.priority) == (made.started_version, 1 << 30, "interactive")
    assert made.changes == {"weight": 2.0, "kv_hard_bytes": 1 << 30, "priority": "interactive"}
    assert made.before == {"weight": 1.0, "kv_hard_bytes": 256 << 20, "priority": "standard"}
    assert selectors.boost(tenant.id) == made
    [ended] = end_due_boosts(now=hours(2))
    assert current(tenant) == msgspec.structs.replace(before, version=ended.ended_version)
    assert ended.ended_at is not None
    assert selectors.boost(tenant.id) is None
    history = selectors.policy_history(tenant.id)
    assert [made.action for made in history] == ["boost.ended", "boost.started", "tenant.created"]
    assert history[0].changed_by == "end of a boost"
    event = AuditEvent.objects.for_tenant(tenant.id).get(action="boost.started")
    assert (event.after["boost"], event.after["reason"]) == (made.id, "a demo")
    assert OutboxEvent.objects.for_tenant(tenant.id).filter(topic="boost.ended").exists()


def test_nothing_ends_before_its_time(tenant: TenantView) -> None:
    """And what ends first is told first."""
    made = boost(tenant)
    assert selectors.next_boost_end() == made.ends_at
    assert end_due_boosts() == []
    assert end_boosts() == 0
    assert current(tenant).weight == 2.0
    assert [one.id for one in selectors.boosts_in_force()] == [made.id]


def test_what_somebody_wrote_meanwhile_stays(tenant: TenantView, actor: Actor) -> None:
    """Of three fields one was written by an operator: the other two go back."""
    boost(tenant, changes={"weight": 2, "rpm": 10, "max_output": 100})
    change(tenant, actor, rpm=20, max_context=77)
    end_due_boosts(now=hours(2))
    after = current(tenant)
    assert (after.weight, after.rpm, after.max_output, after.max_context) == (1.0, 20, 4096, 77)


def test_where_nothing_is_left_to_put_back_no_version_is_made(tenant: TenantView, actor: Actor) -> None:
    """The boost ends all the same, and the trail says so."""
    boost(tenant)
    now = change(tenant, actor, weight=3)
    [ended] = end_due_boosts(now=hours(2))
    assert ended.ended_version is None
    assert ended.ended_at is not None
    assert (current(tenant), selectors.policy_version()) == (now, now.version)
    assert AuditEvent.objects.for_tenant(tenant.id).latest("id").action == "boost.ended"


def test_a_guarantee_written_meanwhile_holds_the_ceiling_up(tenant: TenantView, actor: Actor) -> None:
    """The ceiling goes back as far as the new guarantee lets it; the policy is never one that no rule allows."""
    boost(tenant, changes={"kv_hard_bytes": 1000 << 20})
    change(tenant, actor, kv_soft_bytes=500 << 20)
    end_due_boosts(now=hours(2))
    assert (current(tenant).kv_soft_bytes, current(tenant).kv_hard_bytes) == (500 << 20, 500 << 20)


WHOLE = st.integers(0, 100)


@given(first=st.tuples(WHOLE, WHOLE), during=st.tuples(WHOLE, WHOLE), after=st.tuples(WHOLE, WHOLE), which=st.data())
def test_whatever_was_written_the_policy_keeps_its_rules(
    first: tuple[int, int], during: tuple[int, int], after: tuple[int, int], which: st.DataObject
) -> None:
    """Guarantee and ceiling go back alone, together or not at all: soft never ends up above hard."""

    def policy(pair: tuple[int, int]) -> PolicyView:
        soft, hard = sorted(pair)
        return changed(DEFAULT, {"kv_soft_bytes": soft, "kv_hard_bytes": hard + 1})

    before, boosted, now = policy(first), policy(during), policy(after)
    fields = [name for name in ("kv_soft_bytes", "kv_hard_bytes") if getattr(before, name) != getattr(boosted, name)]
    kept = which.draw(st.sampled_from([(), ("kv_soft_bytes",), ("kv_hard_bytes",), ("kv_soft_bytes", "kv_hard_bytes")]))
    now = msgspec.structs.replace(now, **{name: getattr(boosted, name) for name in kept})
    if now.kv_soft_bytes > now.kv_hard_bytes:
        return  # no policy that anybody could have written
    ended = put_back(
        now,
        {name: getattr(boosted, name) for name in fields},
        {name: getattr(before, name) for name in fields},
    )
    assert 0 <= ended.kv_soft_bytes <= ended.kv_hard_bytes
    for name in ("kv_soft_bytes", "kv_hard_bytes"):
        if name not in fields:
            assert getattr(ended, name) == getattr(now, name)


def test_a_second_boost_is_refused_and_names_the_first(tenant: TenantView) -> None:
    """One at a time; when it has ended another may begin."""
    first = boost(tenant)
    with pytest.raises(Conflict, match=first.id):
        boost(tenant, changes={"rpm": 5})
    row = Boost.objects.for_tenant(tenant.id).get()
    row.pk = uuid.uuid4()
    with pytest.raises(IntegrityError), transaction.atomic():  # the database refuses too
        row.save(force_insert=True)
    end_boost(tenant_id=tenant.id, boost_id=first.id, actor=ACTOR)
    assert boost(tenant, changes={"rpm": 5}).changes == {"rpm": 5}


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("ends_at", {"ends_at": timedelta(seconds=30)}),
        ("ends_at", {"ends_at": timedelta(days=-1)}),
        ("ends_at", {"ends_at": timedelta(days=31)}),
        ("reason", {"reason": "  "}),
        ("reason", {"reason": "x" * 501}),
        ("reason", {"reason": None}),
        ("changes", {"changes": {}}),
        ("changes", {"changes": {"weight": 1.0}}),
        ("share_group", {"changes": {"share_group": ""}}),
        ("shadow", {"changes": {"shadow": {"rpm": 1}}}),
        ("version", {"changes": {"version": 5}}),
        ("rpm", {"changes": {"rpm": -1}}),
        ("weight", {"changes": {"weight": float("nan")}}),
        ("kv_soft_bytes", {"changes": {"kv_soft_bytes": 1 << 40}}),
        ("kv_hard_bytes", {"changes": {"kv_hard_bytes": 1 << 70}}),
    ],
    ids=str,
)
def test_a_wrong_boost_names_the_field_and_changes_nothing(
    tenant: TenantView, field: str, values: dict[str, Any]
) -> None:
    """No version, no boost, no trail."""
    before = current(tenant)
    if "ends_at" in values:  # from now: the names of tests tell no time
        values = {"ends_at": timezone.now() + values["ends_at"]}
    with pytest.raises(Invalid) as caught:
        boost(tenant, **values)
    assert caught.value.field == field
    assert (current(tenant), selectors.policy_version(), selectors.boosts(tenant.id)) == (before, before.version, [])
    assert AuditEvent.objects.for_tenant(tenant.id).count() == 1


def test_a_boost_is_compare_and_set(tenant: TenantView) -> None:
    """As with any change."""
    with pytest.raises(StaleVersion):
        boost(tenant, expected_version=current(tenant).version + 1)
    with pytest.raises(NotFound):
        boost(tenant, tenant_id=uuid.uuid4())


def test_a_boost_breaks_no_guarantee(
    make_tenant: Callable[..., TenantView], make_worker: Callable[..., WorkerView], actor: Actor
) -> None:
    """It passes the same check as a change, and the guarantee that it lowers stays promised until its end."""
    make_worker(kv_bytes=1000)
    one, two = make_tenant("one", policy={"kv_soft_bytes": 500}), make_tenant("two", policy={"kv_soft_bytes": 300})
    with pytest.raises(PolicyInvalid, match="leaves 400") as caught:
        boost(two, changes={"kv_soft_bytes": 401})
    assert caught.value.field == "kv_soft_bytes"
    boost(one, changes={"kv_soft_bytes": 0})
    assert selectors.guaranteed_bytes() == 800
    with pytest.raises(PolicyInvalid, match="leaves 400"):
        set_policy(tenant_id=two.id, expected_version=current(two).version, changes={"kv_soft_bytes": 401}, actor=actor)
    set_policy(tenant_id=one.id, expected_version=current(one).version, changes={"kv_soft_bytes": 600}, actor=actor)
    set_policy(tenant_id=one.id, expected_version=current(one).version, changes={"kv_soft_bytes": 0}, actor=actor)
    assert selectors.guaranteed_bytes() == 800
    end_due_boosts(now=hours(2))
    assert current(one).kv_soft_bytes == 500
    assert selectors.guaranteed_bytes() == 800


def test_an_operator_ends_a_boost_before_its_time(tenant: TenantView, make_tenant: Callable[..., TenantView]) -> None:
    """Once; another tenant's, or one that never was, is not found."""
    made = boost(tenant)
    other = make_tenant("other")
    for tenant_id, boost_id in ((other.id, made.id), (tenant.id, str(uuid.uuid4()))):
        with pytest.raises(NotFound):
            end_boost(tenant_id=tenant_id, boost_id=boost_id, actor=ACTOR)
    ended = end_boost(tenant_id=tenant.id, boost_id=made.id, actor=ACTOR)
    assert current(tenant).weight == 1.0
    with pytest.raises(Conflict, match="ended already"):
        end_boost(tenant_id=tenant.id, boost_id=made.id, actor=ACTOR)
    assert end_due_boosts(now=hours(2)) == []
    assert selectors.boosts(tenant.id) == [ended]


def test_a_revert_under_a_boost_is_a_change_like_any_other(tenant: TenantView, actor: Actor) -> None:
    """It brings the boost's values back to those before; the end then finds nothing to put back."""
    first = current(tenant)
    made = boost(tenant)
    revert_policy(tenant_id=tenant.id, version=first.version, expected_version=made.started_version, actor=actor)
    assert current(tenant).weight == 1.0
    [ended] = end_due_boosts(now=hours(2))
    assert ended.ended_version is None


def test_every_limit_can_be_boosted(tenant: TenantView) -> None:
    """All but the group and the trials."""
    before = current(tenant)
    values = dict.fromkeys(FIELDS, 11) | {"priority": "batch", "weight": 3, "kv_soft_bytes": 7}
    boost(tenant, changes=values)
    end_due_boosts(now=hours(2))
    assert msgspec.structs.replace(current(tenant), version=before.version) == before


@pytest.mark.django_db(transaction=True)
def test_of_many_who_end_a_boost_exactly_one_does(in_threads: Callable[..., list[Any]]) -> None:
    """Controllers, beats and an operator at once: one version, one line in the trail."""
    tenants = [create_tenant(slug=f"t{n}", name="T", actor=ACTOR) for n in range(3)]
    made = [boost(tenant) for tenant in tenants]
    later = hours(2)

    def operator() -> BoostView:
        return end_boost(tenant_id=tenants[0].id, boost_id=made[0].id, actor=ACTOR)

    results = in_threads(*[lambda: end_due_boosts(now=later)] * 5, operator)
    ended = [one.id for result in results if isinstance(result, list) for one in result]
    ended += [result.id for result in results if isinstance(result, BoostView)]
    assert sorted(ended) == sorted(one.id for one in made)
    assert {type(result) for result in results} <= {list, BoostView, Conflict}
    assert [current(tenant).weight for tenant in tenants] == [1.0] * 3
    assert AuditEvent.objects.across_tenants().filter(action="boost.ended").count() == 3
    assert selectors.policy_version() == 3 + 3 + 3


@pytest.mark.django_db(transaction=True)
def test_of_many_boosts_at_once_one_begins(in_threads: Callable[..., list[Any]]) -> None:
    """The others learn that they are stale or too many."""
    tenant = create_tenant(slug="acme", name="Acme", actor=ACTOR)
    version = current(tenant).version
    results = in_threads(*[lambda: boost(tenant, expected_version=version)] * 6)
    assert sum(isinstance(result, BoostView) for result in results) == 1
    assert {type(result) for result in results} <= {BoostView, StaleVersion, Conflict}
