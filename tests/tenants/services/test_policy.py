"""Changing a policy: compare-and-set, and versions in the order of commits."""

import threading
import uuid
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from django.db import connection, transaction

from gateway.database import conninfo
from tenants import selectors
from tenants.contracts import POLICY_CHANNEL, Actor, PolicyView, TenantView, WorkerView
from tenants.errors import NotFound, PolicyInvalid, StaleVersion
from tenants.models import AuditEvent, OutboxEvent, PolicyVersion
from tenants.services.policy import set_policy
from tenants.services.share_groups import create_share_group, remove_share_group, update_share_group
from tenants.services.tenants import create_tenant
from tests.tenants.services.locks import wait_until_somebody_waits_for_a_lock

ACTOR = Actor("system", "tests", "tests")


def current(tenant: TenantView) -> PolicyView:
    """Return a tenant's policy as it is now."""
    policy = selectors.policy(tenant.id)
    assert policy is not None
    return policy


def test_a_change_takes_a_new_version_and_leaves_the_rest(tenant: TenantView, actor: Actor) -> None:
    """Only the named fields change; the version rises; the reader sees what was returned."""
    before = current(tenant)
    after = set_policy(
        tenant_id=tenant.id, expected_version=before.version, changes={"kv_hard_bytes": 1 << 20}, actor=actor
    )
    assert after.version > before.version
    assert after.kv_hard_bytes == 1 << 20
    assert after.max_running == before.max_running
    assert current(tenant) == after
    assert selectors.policy_version() == after.version
    assert selectors.policies(before.version) == [(tenant.id, after)]
    assert selectors.policies(after.version) == []


def test_a_change_leaves_an_audit_row_an_outbox_row_and_its_time(tenant: TenantView, actor: Actor) -> None:
    """The trail shows who changed what from what."""
    before = current(tenant)
    after = set_policy(tenant_id=tenant.id, expected_version=before.version, changes={"rpm": 60}, actor=actor)
    event = AuditEvent.objects.for_tenant(tenant.id).latest("id")
    assert (event.action, event.actor_label, event.target_id) == ("policy.changed", "tests", tenant.id)
    assert (event.before["rpm"], event.after["rpm"], event.after["version"]) == (0, 60, after.version)
    assert OutboxEvent.objects.for_tenant(tenant.id).latest("id").payload["after"]["rpm"] == 60
    assert PolicyVersion.objects.for_tenant(tenant.id).filter(version=after.version).exists()


@pytest.mark.parametrize("expected", [0, -1, 10**30])
def test_a_stale_version_changes_nothing(tenant: TenantView, actor: Actor, expected: int) -> None:
    """The loser learns the version to read again; nothing is written, not even a version."""
    before = current(tenant)
    with pytest.raises(StaleVersion) as caught:
        set_policy(tenant_id=tenant.id, expected_version=expected, changes={"rpm": 1}, actor=actor)
    assert caught.value.current == before.version
    assert current(tenant) == before
    assert selectors.policy_version() == before.version
    assert AuditEvent.objects.for_tenant(tenant.id).count() == 1


@pytest.mark.parametrize("changes", [{}, {"rpm": -1}, {"nonsense": 1}, {"kv_soft_bytes": 1 << 40}])
def test_an_invalid_change_changes_nothing(tenant: TenantView, actor: Actor, changes: dict[str, Any]) -> None:
    """A refused change gives its version back."""
    before = current(tenant)
    with pytest.raises(PolicyInvalid):
        set_policy(tenant_id=tenant.id, expected_version=before.version, changes=changes, actor=actor)
    assert current(tenant) == before
    assert selectors.policy_version() == before.version


def test_an_unknown_tenant_is_not_found(tenant: TenantView, actor: Actor) -> None:
    """There is nothing to change."""
    with pytest.raises(NotFound):
        set_policy(tenant_id=uuid.uuid4(), expected_version=1, changes={"rpm": 1}, actor=actor)


def test_guarantees_must_fit_the_live_pool(
    make_tenant: Callable[..., TenantView], make_worker: Callable[..., WorkerView], actor: Actor
) -> None:
    """Σ soft of all tenants stays under 0.90 of the workers' memory, unless overcommit is asked for and audited."""
    make_worker("worker-0", kv_bytes=600)
    make_worker("worker-1", kv_bytes=400)
    one, two = make_tenant("one"), make_tenant("two", policy={"kv_soft_bytes": 500})
    version = current(one).version
    with pytest.raises(PolicyInvalid, match="overcommit") as caught:
        set_policy(tenant_id=one.id, expected_version=version, changes={"kv_soft_bytes": 401}, actor=actor)
    assert caught.value.field == "kv_soft_bytes"
    after = set_policy(tenant_id=one.id, expected_version=version, changes={"kv_soft_bytes": 400}, actor=actor)
    set_policy(
        tenant_id=one.id,
        expected_version=after.version,
        changes={"kv_soft_bytes": 5000},
        actor=actor,
        overcommit=True,
    )
    assert AuditEvent.objects.for_tenant(one.id).latest("id").after["overcommit"] is True
    # The pool is oversold now; another tenant may still lower its own guarantee.
    set_policy(tenant_id=two.id, expected_version=current(two).version, changes={"kv_soft_bytes": 499}, actor=actor)
    with pytest.raises(PolicyInvalid):
        make_tenant("three", policy={"kv_soft_bytes": 1})


def test_a_policy_joins_a_live_group_alone(tenant: TenantView, actor: Actor) -> None:
    """The refusal names the field and says where to look; what joined may leave again."""
    version = current(tenant).version
    for name in ("docs", "Docs", "no such"):
        with pytest.raises(PolicyInvalid, match="/api/v1/share-groups/") as caught:
            set_policy(tenant_id=tenant.id, expected_version=version, changes={"share_group": name}, actor=actor)
        assert caught.value.field == "share_group"
        if name == "docs":
            create_share_group(name=name, description="", kv_soft_bytes=0, kv_hard_bytes=1, actor=actor)
    joined = set_policy(tenant_id=tenant.id, expected_version=version, changes={"share_group": "docs"}, actor=actor)
    assert selectors.policies(version) == [(tenant.id, joined)]
    event = AuditEvent.objects.for_tenant(tenant.id).latest("id")
    assert (event.before["share_group"], event.after["share_group"]) == ("", "docs")
    left = set_policy(tenant_id=tenant.id, expected_version=joined.version, changes={"share_group": ""}, actor=actor)
    assert left.share_group == ""
    remove_share_group(name="docs", actor=actor)
    with pytest.raises(PolicyInvalid, match="none named 'docs'"):
        set_policy(tenant_id=tenant.id, expected_version=left.version, changes={"share_group": "docs"}, actor=actor)


def test_a_tenant_begins_in_a_live_group_alone(make_tenant: Callable[..., TenantView], actor: Actor) -> None:
    """A tenant that would name no group is not made."""
    with pytest.raises(PolicyInvalid, match="share_group"):
        make_tenant("acme", policy={"share_group": "docs"})
    create_share_group(name="docs", description="", kv_soft_bytes=0, kv_hard_bytes=1, actor=actor)
    assert current(make_tenant("acme", policy={"share_group": "docs"})).share_group == "docs"


def test_guarantees_of_share_groups_count(
    make_tenant: Callable[..., TenantView], make_worker: Callable[..., WorkerView], actor: Actor
) -> None:
    """What is guaranteed to a group is not there for a tenant, new or old, until the group lowers it or goes."""
    make_worker(kv_bytes=1000)
    tenant = make_tenant("one")
    group = create_share_group(name="docs", description="", kv_soft_bytes=700, kv_hard_bytes=900, actor=actor)
    change: dict[str, Any] = {"tenant_id": tenant.id, "expected_version": current(tenant).version, "actor": actor}
    with pytest.raises(PolicyInvalid, match="leaves 200"):
        set_policy(**change, changes={"kv_soft_bytes": 201})
    with pytest.raises(PolicyInvalid, match="leaves 200"):
        make_tenant("two", policy={"kv_soft_bytes": 201})
    update_share_group(name="docs", expected_version=group.version, changes={"kv_soft_bytes": 600}, actor=actor)
    raised = set_policy(**change, changes={"kv_soft_bytes": 300})
    remove_share_group(name="docs", actor=actor)
    set_policy(**change | {"expected_version": raised.version}, changes={"kv_soft_bytes": 900})


@pytest.mark.django_db(transaction=True)
def test_of_writers_with_one_expected_version_exactly_one_wins(in_threads: Callable[..., list[Any]]) -> None:
    """Eight operators save the same form at once: one change is taken, seven learn that they are stale."""
    tenant = create_tenant(slug="acme", name="Acme", actor=ACTOR)
    before = current(tenant)

    def write(rpm: int) -> Callable[[], PolicyView]:
        return lambda: set_policy(
            tenant_id=tenant.id, expected_version=before.version, changes={"rpm": rpm}, actor=ACTOR
        )

    results = in_threads(*(write(rpm) for rpm in range(1, 9)))
    winners = [result for result in results if isinstance(result, PolicyView)]
    losers = [result for result in results if isinstance(result, StaleVersion)]
    assert (len(winners), len(losers)) == (1, 7)
    assert current(tenant) == winners[0]
    assert {loser.current for loser in losers} == {winners[0].version}
    assert AuditEvent.objects.for_tenant(tenant.id).filter(action="policy.changed").count() == 1


@pytest.mark.django_db(transaction=True)
def test_versions_are_announced_in_the_order_of_commits(in_threads: Callable[..., list[Any]]) -> None:
    """Writers of many tenants race; a listener, which hears commits in their order, hears versions without a gap."""
    tenants = [create_tenant(slug=f"t{n}", name="T", actor=ACTOR) for n in range(6)]
    first = selectors.policy_version()

    def write_often(tenant: TenantView) -> Callable[[], None]:
        def run() -> None:
            for rpm in range(1, 6):
                set_policy(
                    tenant_id=tenant.id, expected_version=current(tenant).version, changes={"rpm": rpm}, actor=ACTOR
                )

        return run

    with psycopg.connect(conninfo(connection.settings_dict), autocommit=True) as listener:
        listener.execute(f"LISTEN {POLICY_CHANNEL}")
        results = in_threads(*(write_often(tenant) for tenant in tenants))
        heard = [int(note.payload) for note in listener.notifies(timeout=60, stop_after=30)]
    assert results == [None] * 6
    assert heard == list(range(first + 1, first + 31))


@pytest.mark.django_db(transaction=True)
def test_a_later_version_never_commits_before_an_earlier_one() -> None:
    """While a writer with version n has not committed, a second one waits: no reader can see n+1 and miss n."""
    slow, fast = (create_tenant(slug=slug, name="T", actor=ACTOR) for slug in ("slow", "fast"))
    start = selectors.policy_version()
    done: list[PolicyView] = []

    def second() -> None:
        try:
            done.append(
                set_policy(tenant_id=fast.id, expected_version=current(fast).version, changes={"rpm": 2}, actor=ACTOR)
            )
        finally:
            connection.close()

    thread = threading.Thread(target=second)
    with transaction.atomic():
        first = set_policy(tenant_id=slow.id, expected_version=current(slow).version, changes={"rpm": 1}, actor=ACTOR)
        thread.start()
        wait_until_somebody_waits_for_a_lock()
        assert not done
        with psycopg.connect(conninfo(connection.settings_dict), autocommit=True) as reader:
            row = reader.execute("SELECT max(version) FROM tenants_policy").fetchone()
        assert row == (start,)
    thread.join(30)
    assert first.version == start + 1
    assert done[0].version == start + 2
