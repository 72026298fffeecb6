"""Reads that others call often, or whose answers others rely on."""

from collections.abc import Callable
from typing import Any

import msgspec

from tenants import rows, selectors
from tenants.contracts import Actor, KeyGrant, PolicyView, TenantView
from tenants.models import Policy
from tenants.rules.policy import DEFAULT, FIELDS
from tenants.services.keys import create_api_key, digest
from tenants.services.policy import set_policy
from tenants.services.prefixes import register_prefix
from tenants.services.share_groups import create_share_group, remove_share_group


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
    assert selectors.share_groups() == selectors.share_group_policies() == selectors.share_group_policies(7) == []
    assert selectors.shared_prefixes("docs") == []
    assert selectors.pool_bytes() == selectors.guaranteed_bytes() == 0
    assert selectors.share_group("docs") is None
    assert selectors.tenant("acme") is None


def test_the_default_policy_is_written_down_twice_alike() -> None:
    """The columns' defaults and the rules' default are one policy, and every field of the contract is a rule's."""
    row = rows.policy_view(Policy(version=0))
    assert {name: getattr(row, name) for name in FIELDS} == {name: getattr(DEFAULT, name) for name in FIELDS}
    assert {"version", *FIELDS} == set(PolicyView.__struct_fields__)


def test_groups_are_one_query(
    make_tenant: Callable[..., TenantView], actor: Actor, django_assert_num_queries: Any
) -> None:
    """However many there are, with their members and counts, or with their prefixes: of one moment."""
    for name in ("one", "two", "three"):
        create_share_group(name=name, description="", kv_soft_bytes=1, kv_hard_bytes=1, actor=actor)
        made = [register_prefix(group=name, name=f"p{n}", text="x", actor=actor) for n in range(2)]
    make_tenant("acme", policy={"share_group": "one", "kv_soft_bytes": 10})
    make_tenant("beta", policy={"share_group": "one"})
    with django_assert_num_queries(1):
        views = selectors.share_groups()
    assert [(view.name, view.num_prefixes, view.tenants) for view in views] == [
        ("one", 2, ("acme", "beta")),
        ("three", 2, ()),
        ("two", 2, ()),
    ]
    with django_assert_num_queries(1):
        pushed = selectors.share_group_policies()
    assert [(group.name, len(group.prefixes)) for group in pushed] == [("one", 2), ("two", 2), ("three", 2)]
    assert list(pushed[-1].prefixes) == made == selectors.shared_prefixes("three")
    assert selectors.guaranteed_bytes() == 13


def test_group_policies_go_on_from_a_version(db: None, actor: Actor) -> None:
    """Oldest change first; a removed group only for readers who may have known it, even where that is all there was."""
    for name in ("one", "two"):
        create_share_group(name=name, description="", kv_soft_bytes=0, kv_hard_bytes=1, actor=actor)
    register_prefix(group="one", name="p", text="x", actor=actor)
    assert [group.name for group in selectors.share_group_policies()] == ["two", "one"]
    assert [group.name for group in selectors.share_group_policies(2)] == ["one"]
    remove_share_group(name="two", actor=actor)
    assert [(group.name, group.removed) for group in selectors.share_group_policies()] == [("one", False)]
    assert [(group.name, group.removed) for group in selectors.share_group_policies(2)] == [
        ("one", False),
        ("two", True),
    ]
    assert selectors.share_group_policies(selectors.policy_version()) == []


def test_prefixes_are_read_without_their_contents_and_then_one_by_one(db: None, actor: Actor) -> None:
    """A group may have 16 MiB of them: who follows groups fetches what is new to it."""
    create_share_group(name="docs", description="", kv_soft_bytes=0, kv_hard_bytes=1, actor=actor)
    chat = [{"role": "user", "content": "x"}]
    made = [
        register_prefix(group="docs", name="chat", messages=chat, actor=actor),
        register_prefix(group="docs", name="text", text="x" * 1000, actor=actor),
    ]
    (light,) = selectors.share_group_policies(contents=False)
    assert light.prefixes == tuple(msgspec.structs.replace(prefix, messages=(), text="") for prefix in made)
    assert [selectors.shared_prefix(prefix.id) for prefix in light.prefixes] == made
    remove_share_group(name="docs", actor=actor)
    assert selectors.shared_prefix(made[0].id) is None
