"""The history of a policy, and going back in it."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tenants import selectors
from tenants.contracts import Actor, PolicyView, ShadowLimits, TenantView, WorkerView
from tenants.errors import NotFound, PolicyInvalid, StaleVersion
from tenants.models import AuditEvent, PolicyVersion
from tenants.services.policy import revert_policy, set_policy
from tenants.services.share_groups import create_share_group, remove_share_group
from tests.tenants.services.test_policy import current


def change(tenant: TenantView, actor: Actor, **changes: Any) -> PolicyView:
    """Change a tenant's policy as it is now."""
    return set_policy(
        tenant_id=tenant.id, expected_version=current(tenant).version, changes=changes, actor=actor, overcommit=True
    )


def back(tenant: TenantView, actor: Actor, version: int, **more: Any) -> PolicyView:
    """Go back to a version from the policy as it is now."""
    return revert_policy(
        tenant_id=tenant.id, version=version, expected_version=current(tenant).version, actor=actor, **more
    )


def test_each_version_is_kept_whole_with_who_and_what(tenant: TenantView, actor: Actor) -> None:
    """Newest first: the policy as it was, who made it so, and which fields differ from the version before."""
    first = current(tenant)
    second = change(tenant, actor, rpm=60, shadow={"rpm": 30})
    third = change(tenant, Actor("user", "7", "ann@example.org"), weight=2)
    history = selectors.policy_history(tenant.id)
    assert [made.policy for made in history] == [third, second, first]
    assert [made.version for made in history] == [third.version, second.version, first.version]
    assert [made.action for made in history] == ["policy.changed", "policy.changed", "tenant.created"]
    assert [made.changed for made in history] == [("weight",), ("rpm", "shadow"), ()]
    assert [made.changed_by for made in history] == ["ann@example.org", "tests", "tests"]
    assert selectors.policy_history(tenant.id, before=third.version, most=1) == history[1:2]


def test_going_back_is_a_new_version_with_the_old_fields(tenant: TenantView, actor: Actor) -> None:
    """Every field is as it was, limits on trial too; the trail says to which version it went, and forward is free."""
    first = change(tenant, actor, kv_soft_bytes=5, kv_hard_bytes=50, priority="batch", shadow={"max_running": 2})
    change(tenant, actor, kv_hard_bytes=500, priority="interactive", shadow={"max_running": None, "rpm": 9}, rpm=10)
    last = change(tenant, actor, kv_soft_bytes=400)
    reverted = back(tenant, actor, first.version)
    assert reverted == msgspec.structs.replace(first, version=last.version + 1)
    assert reverted.shadow == ShadowLimits(max_running=2)
    assert current(tenant) == reverted
    event = AuditEvent.objects.for_tenant(tenant.id).latest("id")
    assert (event.action, event.after["reverted_to"]) == ("policy.reverted", first.version)
    assert selectors.policy_history(tenant.id)[0].action == "policy.reverted"
    assert back(tenant, actor, last.version) == msgspec.structs.replace(last, version=reverted.version + 1)


def test_what_is_not_of_the_history_is_refused(
    tenant: TenantView, make_tenant: Callable[..., TenantView], actor: Actor
) -> None:
    """Another tenant's version, a group's, one to come, and what is no version at all; nothing is written."""
    other = current(make_tenant("other"))
    group = create_share_group(name="docs", description="", kv_soft_bytes=0, kv_hard_bytes=1, actor=actor)
    before, newest = current(tenant), selectors.policy_version()
    for version in (other.version, group.version, newest + 1, 0, -1, 2**63, 2**70, True, "1", None):
        with pytest.raises(PolicyInvalid) as caught:
            back(tenant, actor, version)  # type: ignore[arg-type]  # what a client may send
        assert caught.value.field == "version"
    with pytest.raises(PolicyInvalid, match="nothing to bring back") as caught:
        back(tenant, actor, before.version)
    assert (current(tenant), selectors.policy_version()) == (before, newest)


def test_going_back_is_compare_and_set(tenant: TenantView, actor: Actor) -> None:
    """Whoever has read an older policy than there is goes nowhere."""
    first = current(tenant)
    second = change(tenant, actor, rpm=1)
    with pytest.raises(StaleVersion) as caught:
        revert_policy(tenant_id=tenant.id, version=first.version, expected_version=first.version, actor=actor)
    assert caught.value.current == second.version
    with pytest.raises(NotFound):
        revert_policy(tenant_id="00000000-0000-0000-0000-000000000000", version=1, expected_version=1, actor=actor)


def test_going_back_to_a_group_that_is_gone_names_the_field(tenant: TenantView, actor: Actor) -> None:
    """The error says which field, and nothing of the rest goes back."""
    create_share_group(name="docs", description="", kv_soft_bytes=0, kv_hard_bytes=1, actor=actor)
    member = change(tenant, actor, share_group="docs", rpm=7)
    remove_share_group(name="docs", actor=actor, detach=True)
    now = change(tenant, actor, rpm=8)
    with pytest.raises(PolicyInvalid, match="none named 'docs'") as caught:
        back(tenant, actor, member.version)
    assert caught.value.field == "share_group"
    assert current(tenant) == now


def test_going_back_to_a_guarantee_that_no_longer_fits_names_the_field(
    make_tenant: Callable[..., TenantView], make_worker: Callable[..., WorkerView], actor: Actor
) -> None:
    """Others have taken the room meanwhile; overcommit lets it pass, as with any change."""
    make_worker(kv_bytes=1000)
    one, two = make_tenant("one"), make_tenant("two")
    high = set_policy(
        tenant_id=one.id, expected_version=current(one).version, changes={"kv_soft_bytes": 800}, actor=actor
    )
    change(one, actor, kv_soft_bytes=0)
    set_policy(tenant_id=two.id, expected_version=current(two).version, changes={"kv_soft_bytes": 200}, actor=actor)
    with pytest.raises(PolicyInvalid, match="leaves 700") as caught:
        back(one, actor, high.version)
    assert caught.value.field == "kv_soft_bytes"
    assert back(one, actor, high.version, overcommit=True).kv_soft_bytes == 800
    assert AuditEvent.objects.for_tenant(one.id).latest("id").after["overcommit"] is True


def test_a_field_that_came_later_keeps_its_value(tenant: TenantView, actor: Actor) -> None:
    """A version of a time without host memory says nothing of it."""
    old = current(tenant)
    made = PolicyVersion.objects.for_tenant(tenant.id).get(version=old.version)
    del made.policy["host_bytes"], made.policy["shadow"]
    made.save()
    change(tenant, actor, host_bytes=77, shadow={"rpm": 5}, rpm=3)
    reverted = back(tenant, actor, old.version)
    assert (reverted.host_bytes, reverted.shadow, reverted.rpm) == (77, ShadowLimits(rpm=5), 0)


def test_a_trial_changes_limit_by_limit(tenant: TenantView, actor: Actor) -> None:
    """Those not named stay, null takes one off, and null for the whole takes all off."""
    assert change(tenant, actor, shadow={"rpm": 5, "max_output": 6}).shadow == ShadowLimits(rpm=5, max_output=6)
    assert change(tenant, actor, shadow={"rpm": None, "tpm": 7}).shadow == ShadowLimits(max_output=6, tpm=7)
    assert change(tenant, actor, shadow=None).shadow == ShadowLimits()


def test_guarantees_that_are_oversold_tell_what_is_left(
    tenant: TenantView, make_worker: Callable[..., WorkerView], actor: Actor
) -> None:
    """Up to the pool's low watermark all is kept; beyond it each guarantee gets its part, and the reserve stays."""
    assert selectors.overcommitment().factor == 1.0
    make_worker(kv_bytes=1000)
    change(tenant, actor, kv_soft_bytes=900)
    assert selectors.overcommitment().factor == 1.0
    change(tenant, actor, kv_soft_bytes=950)
    told = selectors.overcommitment()
    assert (told.pool_bytes, told.room_bytes, told.guaranteed_bytes, told.factor) == (1000, 900, 950, 900 / 950)
    change(tenant, actor, kv_soft_bytes=3600)
    assert selectors.overcommitment().factor == 0.25
