"""Creating, changing and removing share groups."""

from collections.abc import Callable
from typing import Any

import pytest

from tenants import rows, selectors
from tenants.contracts import Actor, ShareGroupPolicy, ShareGroupView, TenantView, WorkerView
from tenants.errors import Conflict, Invalid, NotFound, StaleVersion
from tenants.models import AuditEvent, OutboxEvent, SharedPrefix, ShareGroup, Tenant
from tenants.services.policy import set_policy
from tenants.services.prefixes import register_prefix
from tenants.services.share_groups import create_share_group, remove_share_group, update_share_group
from tenants.services.tenants import create_tenant

ACTOR = Actor("system", "tests", "tests")


def make(name: str = "docs", **more: Any) -> ShareGroupView:
    """Create a share group."""
    fields: dict[str, Any] = {"description": "Handbooks", "kv_soft_bytes": 10, "kv_hard_bytes": 100}
    return create_share_group(name=name, **fields | more, actor=ACTOR)


def join(tenant: TenantView, name: str) -> None:
    """Make a tenant a member."""
    policy = selectors.policy(tenant.id)
    assert policy is not None
    set_policy(tenant_id=tenant.id, expected_version=policy.version, changes={"share_group": name}, actor=ACTOR)


def secret(name: str) -> bytes:
    """Return a group's secret."""
    return bytes(ShareGroup.objects.get(name=name).secret)


def test_a_group_begins_with_a_version_a_secret_and_a_trail(db: None) -> None:
    """What was returned is what is read; audit and outbox have it without the secret."""
    view = make()
    assert selectors.share_group("docs") == view
    assert selectors.share_groups() == [view]
    assert (view.version, view.num_prefixes, view.tenants) == (selectors.policy_version(), 0, ())
    assert len(secret("docs")) == 32
    event = AuditEvent.objects.across_tenants().get()
    assert (event.action, event.target_kind, event.target_id) == ("share_group.created", "share_group", "docs")
    assert event.after == {
        "name": "docs",
        "version": view.version,
        "description": "Handbooks",
        "kv_soft_bytes": 10,
        "kv_hard_bytes": 100,
    }
    assert OutboxEvent.objects.across_tenants().get().payload["after"] == event.after


def test_namespaces_of_groups_and_tenants_all_differ(tenant: TenantView) -> None:
    """Each is 32 bytes; a group's is never a tenant's, not even with the same secret."""
    make("one")
    make("two")
    namespaces = [group.namespace for group in selectors.share_group_policies()]
    tenants_secret = bytes(Tenant.objects.get(pk=tenant.id).secret)
    every = [*namespaces, rows.namespace(tenants_secret), rows.group_namespace(tenants_secret)]
    assert {len(namespace) for namespace in every} == {32}
    assert len({*every, secret("one"), secret("two"), tenants_secret}) == 7


@pytest.mark.parametrize("name", ["", "A", "a_b", "-a", "a-", "a" * 41, "a b", "ä", "a\n", None, 7])
def test_a_name_has_its_form(db: None, name: Any) -> None:
    """It stands in URLs and in policies."""
    with pytest.raises(Invalid) as caught:
        make(name)
    assert caught.value.field == "name"
    assert selectors.policy_version() == 0


def test_a_live_name_is_taken_once(db: None) -> None:
    """The second group of a name is refused and uses no version up."""
    make()
    with pytest.raises(Conflict, match="docs"):
        make()
    assert selectors.policy_version() == 1


def test_a_change_takes_a_new_version_and_leaves_the_rest(db: None) -> None:
    """Only the named fields change; the trail shows from what to what."""
    before = make()
    after = update_share_group(
        name="docs", expected_version=before.version, changes={"kv_hard_bytes": 200}, actor=ACTOR
    )
    assert after.version > before.version
    assert (after.description, after.kv_soft_bytes, after.kv_hard_bytes) == ("Handbooks", 10, 200)
    assert (after.created_at, selectors.share_group("docs")) == (before.created_at, after)
    event = AuditEvent.objects.across_tenants().latest("id")
    assert (event.action, event.before["kv_hard_bytes"], event.after["kv_hard_bytes"]) == (
        "share_group.changed",
        100,
        200,
    )
    assert [group.version for group in selectors.share_group_policies(before.version)] == [after.version]


@pytest.mark.parametrize("changes", [{}, {"kv_hard_bytes": 0}, {"kv_soft_bytes": 101}, {"name": "new"}, {"secret": 1}])
def test_an_invalid_change_changes_nothing(db: None, changes: dict[str, Any]) -> None:
    """A refused change gives its version back."""
    before = make()
    with pytest.raises(Invalid):
        update_share_group(name="docs", expected_version=before.version, changes=changes, actor=ACTOR)
    assert selectors.share_group("docs") == before
    assert selectors.policy_version() == before.version


def test_a_stale_version_changes_nothing(db: None) -> None:
    """Also a prefix that somebody registered meanwhile makes it stale; the loser learns the version to read."""
    before = make()
    register_prefix(group="docs", name="p", text="x", actor=ACTOR)
    for change in (
        lambda: update_share_group(
            name="docs", expected_version=before.version, changes={"description": "x"}, actor=ACTOR
        ),
        lambda: remove_share_group(name="docs", expected_version=before.version, actor=ACTOR),
    ):
        with pytest.raises(StaleVersion, match="share group") as caught:
            change()
        assert caught.value.current == before.version + 1
    assert selectors.policy_version() == before.version + 1


@pytest.mark.parametrize("name", ["nowhere", "", None, "\0", "x" * 300])
def test_an_unknown_group_is_not_found(db: None, name: Any) -> None:
    """There is nothing to change or to remove, and no version is used up."""
    for change in (
        lambda: update_share_group(name=name, expected_version=1, changes={"description": "x"}, actor=ACTOR),
        lambda: remove_share_group(name=name, actor=ACTOR),
        lambda: register_prefix(group=name, name="p", text="x", actor=ACTOR),
    ):
        with pytest.raises(NotFound):
            change()
    assert selectors.policy_version() == 0


def test_guarantees_must_fit_what_tenants_leave(
    make_tenant: Callable[..., TenantView], make_worker: Callable[..., WorkerView]
) -> None:
    """Σ soft over tenants and groups stays under 0.90 of the pool, unless overcommit is asked for and audited."""
    make_worker(kv_bytes=1000)
    make_tenant("one", policy={"kv_soft_bytes": 500})
    with pytest.raises(Invalid, match="leaves 400") as caught:
        make(kv_soft_bytes=401, kv_hard_bytes=500)
    assert caught.value.field == "kv_soft_bytes"
    group = make(kv_soft_bytes=300, kv_hard_bytes=5000)
    make("other", kv_soft_bytes=100)
    change: dict[str, Any] = {"name": "docs", "expected_version": group.version, "actor": ACTOR}
    with pytest.raises(Invalid, match="overcommit"):
        update_share_group(**change, changes={"kv_soft_bytes": 301})
    over = update_share_group(**change, changes={"kv_soft_bytes": 5000}, overcommit=True)
    assert AuditEvent.objects.across_tenants().latest("id").after["overcommit"] is True
    # The pool is oversold now; a guarantee may still be lowered.
    update_share_group(**change | {"expected_version": over.version}, changes={"kv_soft_bytes": 4999})
    make("third", kv_soft_bytes=1, overcommit=True)


def test_a_removed_group_leaves_nothing_but_word_of_its_end(db: None) -> None:
    """Secret, limits, description and prefixes are gone; a reader that knew it learns so; a new one never sees it."""
    before = make()
    register_prefix(group="docs", name="p", text="x", actor=ACTOR)
    remove_share_group(name="docs", actor=ACTOR)
    assert selectors.share_group("docs") is None
    assert selectors.share_groups() == selectors.share_group_policies() == []
    assert not SharedPrefix.objects.for_group("docs").exists()
    row = ShareGroup.objects.get(name="docs")
    assert (bytes(row.secret), row.kv_soft_bytes, row.kv_hard_bytes, row.description) == (b"", 0, 0, "")
    gone = ShareGroupPolicy(name="docs", version=selectors.policy_version(), removed=True)
    assert selectors.share_group_policies(before.version) == [gone]
    assert selectors.share_group_policies(gone.version) == []
    actions = list(AuditEvent.objects.across_tenants().order_by("id").values_list("action", flat=True))
    assert actions == ["share_group.created", "prefix.registered", "prefix.removed", "share_group.removed"]
    with pytest.raises(NotFound):
        remove_share_group(name="docs", actor=ACTOR)


def test_a_name_used_again_is_another_group(db: None) -> None:
    """New secret, new times, no prefix of the old one; its old versions make no change of the new one."""
    old = make()
    old_secret = secret("docs")
    register_prefix(group="docs", name="p", text="x", actor=ACTOR)
    remove_share_group(name="docs", actor=ACTOR)
    new = make(kv_hard_bytes=50)
    assert (new.num_prefixes, new.kv_hard_bytes) == (0, 50)
    assert new.created_at > old.created_at
    assert secret("docs") != old_secret
    (seen,) = selectors.share_group_policies(old.version)
    assert (seen.version, seen.removed, seen.namespace) == (new.version, False, rows.group_namespace(secret("docs")))
    with pytest.raises(StaleVersion):
        update_share_group(name="docs", expected_version=old.version, changes={"kv_hard_bytes": 1}, actor=ACTOR)


def test_a_group_that_policies_name_goes_only_with_detach(make_tenant: Callable[..., TenantView]) -> None:
    """The refusal names the tenants; with detach their policies leave it in the same transaction, each on its own."""
    one, two, other = make_tenant("one"), make_tenant("two"), make_tenant("other")
    before = make()
    for tenant in (two, one):
        join(tenant, "docs")
    assert selectors.share_groups()[0].tenants == ("one", "two")
    start = selectors.policy_version()
    with pytest.raises(Conflict, match="those of one, two;"):
        remove_share_group(name="docs", actor=ACTOR)
    assert (selectors.policy_version(), selectors.share_group_policies(before.version)) == (start, [])
    remove_share_group(name="docs", actor=ACTOR, detach=True)
    changed = dict(selectors.policies(start))
    assert {tenant_id: policy.share_group for tenant_id, policy in changed.items()} == {one.id: "", two.id: ""}
    versions = [policy.version for policy in changed.values()]
    versions += [group.version for group in selectors.share_group_policies(start)]
    assert sorted(versions) == [start + 1, start + 2, start + 3]
    for tenant in (one, two):
        assert AuditEvent.objects.for_tenant(tenant.id).latest("id").action == "policy.changed"
    assert AuditEvent.objects.for_tenant(other.id).latest("id").action == "tenant.created"


def test_a_conflict_names_only_so_many_tenants(make_tenant: Callable[..., TenantView]) -> None:
    """A group of hundreds does not make a message of pages."""
    make()
    for n in range(23):
        make_tenant(f"t{n:02}", policy={"share_group": "docs"})
    with pytest.raises(Conflict, match="t19 and 3 more;"):
        remove_share_group(name="docs", actor=ACTOR)


@pytest.mark.django_db(transaction=True)
def test_of_writers_with_one_expected_version_exactly_one_wins(in_threads: Callable[..., list[Any]]) -> None:
    """Eight operators save the same form at once: one change is taken, seven learn that they are stale."""
    before = make()

    def write(hard: int) -> Callable[[], ShareGroupView]:
        return lambda: update_share_group(
            name="docs", expected_version=before.version, changes={"kv_hard_bytes": hard}, actor=ACTOR
        )

    results = in_threads(*(write(hard) for hard in range(101, 109)))
    winners = [result for result in results if isinstance(result, ShareGroupView)]
    assert len(winners) == 1
    assert sum(isinstance(result, StaleVersion) for result in results) == 7
    assert selectors.share_group("docs") == winners[0]
    assert selectors.policy_version() == winners[0].version


@pytest.mark.django_db(transaction=True)
def test_of_creators_of_one_name_exactly_one_wins(in_threads: Callable[..., list[Any]]) -> None:
    """For a fresh name as for one that is used again."""
    for _ in range(2):
        results = in_threads(*[make] * 6)
        assert sum(isinstance(result, ShareGroupView) for result in results) == 1
        assert sum(isinstance(result, Conflict) for result in results) == 5
        remove_share_group(name="docs", actor=ACTOR)


@pytest.mark.django_db(transaction=True)
def test_joining_and_removing_race_to_one_of_two_ends(in_threads: Callable[..., list[Any]]) -> None:
    """Either the tenant joined and the group stays, or the group went and the tenant is refused; never half of it."""
    tenants = [create_tenant(slug=f"t{n}", name="T", actor=ACTOR) for n in range(4)]
    for _ in range(5):
        make()
        results = in_threads(
            lambda: remove_share_group(name="docs", actor=ACTOR),
            *(lambda tenant=tenant: join(tenant, "docs") for tenant in tenants),
        )
        members = [tenant.slug for tenant in tenants if selectors.policies() and _group_of(tenant)]
        group = selectors.share_group("docs")
        if results[0] is None:
            assert (group, members) == (None, [])
            assert all(isinstance(result, Invalid) for result in results[1:])
        else:
            assert isinstance(results[0], Conflict)
            assert group is not None
            assert group.tenants == tuple(members) != ()
            remove_share_group(name="docs", actor=ACTOR, detach=True)


def _group_of(tenant: TenantView) -> str:
    policy = selectors.policy(tenant.id)
    assert policy is not None
    return policy.share_group
