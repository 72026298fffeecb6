"""Reads that others call often, or whose answers others rely on."""

from collections.abc import Callable
from typing import Any

import msgspec

from tenants import selectors
from tenants.contracts import Actor, KeyGrant, PolicyView, TenantView
from tenants.models import Policy
from tenants.rules.policy import DEFAULT, FIELDS
from tenants.services.keys import create_api_key, digest
from tenants.services.policy import set_policy


def test_a_grant_is_one_query(tenant: TenantView, actor: Actor, django_assert_num_queries: Any) -> None:
    """A web process that does not know a key asks once."""
    stored = digest(create_api_key(tenant_id=tenant.id, name="k", actor=actor).secret)
    with django_assert_num_queries(1):
        grant = selectors.grant_for_digest(stored)
    assert grant is not None
    assert selectors.grant_for_digest("0" * 64) is None


def test_a_grant_crosses_borders(tenant: TenantView, actor: Actor) -> None:
    """It survives msgpack, and holds neither secret nor digest."""
    made = create_api_key(tenant_id=tenant.id, name="k", actor=actor)
    grant = selectors.grant_for_digest(digest(made.secret))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(grant), type=KeyGrant) == grant
    assert made.secret.rsplit("_", 1)[1] not in repr(grant)


def test_policies_go_on_from_a_version(make_tenant: Callable[..., TenantView], actor: Actor) -> None:
    """Oldest change first; each tenant once, as it is now."""
    one, two = make_tenant("one"), make_tenant("two")
    assert selectors.policy_version() == 2
    assert [tenant_id for tenant_id, _ in selectors.policies()] == [one.id, two.id]
    changed = set_policy(tenant_id=one.id, expected_version=1, changes={"rpm": 1}, actor=actor)
    assert [tenant_id for tenant_id, _ in selectors.policies()] == [two.id, one.id]
    assert selectors.policies(2) == [(one.id, changed)]


def test_an_empty_database_answers(db: None) -> None:
    """Before the first tenant and the first worker nothing is missing."""
    assert selectors.policy_version() == 0
    assert selectors.policies() == selectors.live_workers() == selectors.served_models() == selectors.tenants() == []
    assert selectors.pool_bytes() == 0
    assert selectors.tenant("acme") is None


def test_the_default_policy_is_written_down_twice_alike() -> None:
    """The columns' defaults and the rules' default are one policy, and every field of the contract is a rule's."""
    row = Policy(version=0)
    assert {name: getattr(row, name) for name in FIELDS} == {name: getattr(DEFAULT, name) for name in FIELDS}
    assert {"version", *FIELDS} == set(PolicyView.__struct_fields__)
