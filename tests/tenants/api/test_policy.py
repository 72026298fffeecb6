"""Policy and acks over HTTP."""

from collections.abc import Callable
from typing import Any

import pytest
from django.utils import timezone

from tenants import selectors
from tenants.contracts import Actor, TenantView, WorkerView
from tenants.services.keys import create_management_key
from tenants.services.policy import set_policy
from tenants.services.share_groups import create_share_group, remove_share_group
from tenants.services.workers import mark_applied

PATH = "tenants/acme/policy/"


def test_the_etag_is_the_version(tenant: TenantView, operator: Any) -> None:
    """A read gives what a change has to name, and a change gives the next."""
    read = operator.get(PATH)
    version = read.json()["version"]
    assert read["ETag"] == f'"{version}"'
    changed = operator.patch(PATH, {"kv_hard_bytes": 1 << 20, "weight": 2}, **{"If-Match": read["ETag"]})
    assert changed.status_code == 200
    assert changed.json()["version"] > version
    assert changed["ETag"] == f'"{changed.json()["version"]}"'
    assert (changed.json()["kv_hard_bytes"], changed.json()["weight"]) == (1 << 20, 2.0)
    assert operator.get(PATH).json() == changed.json()


def test_without_if_match_nothing_changes(tenant: TenantView, operator: Any) -> None:
    """428, so that nobody overwrites what they have not read."""
    before = operator.get(PATH).json()
    refused = operator.patch(PATH, {"rpm": 1})
    assert (refused.status_code, refused.json()["error"]["code"]) == (428, "precondition_required")
    assert operator.get(PATH).json() == before


def test_a_stale_version_is_412_with_the_current_etag(tenant: TenantView, operator: Any) -> None:
    """The loser can read, merge and repeat."""
    etag = operator.get(PATH)["ETag"]
    assert operator.patch(PATH, {"rpm": 1}, **{"If-Match": etag}).status_code == 200
    refused = operator.patch(PATH, {"rpm": 2}, **{"If-Match": etag})
    assert (refused.status_code, refused.json()["error"]["code"]) == (412, "stale_version")
    assert refused["ETag"] == operator.get(PATH)["ETag"]
    assert operator.get(PATH).json()["rpm"] == 1


@pytest.mark.parametrize("header", ["", "*", '"a"', 'W/"1"', '"1", "2"', '"-1"', '"1.0"', "９", '"' + "9" * 40 + '"'])
def test_a_malformed_if_match_is_400(tenant: TenantView, operator: Any, header: str) -> None:
    """Only one version, in plain digits."""
    refused = operator.patch(PATH, {"rpm": 1}, **{"If-Match": header})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "If-Match")


@pytest.mark.parametrize(
    ("param", "body"),
    [
        ("rpm", {"rpm": -1}),
        ("rpm", {"rpm": "5"}),
        ("kv_soft_bytes", {"kv_soft_bytes": 2, "kv_hard_bytes": 1}),
        ("weight", {"weight": None}),
        ("priority", {"priority": ["standard"]}),
        ("share_group", {"share_group": "nowhere"}),
        ("share_group", {"share_group": None}),
        ("share_group", {"share_group": ["docs"]}),
        ("nonsense", {"nonsense": 1, "rpm": 5}),
        ("version", {"version": 9}),
        ("overcommit", {"overcommit": "yes", "rpm": 1}),
        (None, {}),
        (None, {"overcommit": True}),
        (None, []),
        (None, "rpm"),
        (None, None),
    ],
    ids=str,
)
def test_a_wrong_body_is_400_and_changes_nothing(
    tenant: TenantView, operator: Any, param: str | None, body: Any
) -> None:
    """The field is named; no version is used up."""
    before = operator.get(PATH)
    refused = operator.patch(PATH, body, **{"If-Match": before["ETag"]})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
    assert operator.get(PATH).json() == before.json()
    assert selectors.policy_version() == before.json()["version"]


def test_guarantees_that_do_not_fit_need_overcommit(
    tenant: TenantView, operator: Any, make_worker: Callable[..., WorkerView]
) -> None:
    """The refusal says how much there is and what to do; the flag lets it pass."""
    make_worker(kv_bytes=1000)
    etag = operator.get(PATH)["ETag"]
    refused = operator.patch(PATH, {"kv_soft_bytes": 901}, **{"If-Match": etag})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "kv_soft_bytes")
    assert "overcommit" in refused.json()["error"]["message"]
    body = {"kv_soft_bytes": 901, "overcommit": True}
    assert operator.patch(PATH, body, **{"If-Match": etag}).json()["kv_soft_bytes"] == 901


def test_a_tenant_reads_its_policy_and_does_not_write_it(
    tenant: TenantView, with_key: Callable[[str], Any], actor: Actor
) -> None:
    """Not even its owner's key."""
    raw = create_management_key(name="k", role="owner", actor=actor, tenant_id=tenant.id).secret
    read = with_key(raw).get(PATH)
    assert read.status_code == 200
    create_share_group(name="docs", description="", kv_soft_bytes=0, kv_hard_bytes=1, actor=actor)
    for change in ({"rpm": 0}, {"share_group": "docs"}):
        refused = with_key(raw).patch(PATH, change, **{"If-Match": read["ETag"]})
        assert (refused.status_code, refused.json()["error"]["type"]) == (403, "permission_error")
    assert with_key(raw).get(PATH).json() == read.json()


def test_an_operator_puts_a_tenant_into_a_share_group(tenant: TenantView, operator: Any, actor: Actor) -> None:
    """By the group's name; empty takes it out again."""
    create_share_group(name="docs", description="", kv_soft_bytes=0, kv_hard_bytes=1, actor=actor)
    for name in ("docs", ""):
        changed = operator.patch(PATH, {"share_group": name}, **{"If-Match": operator.get(PATH)["ETag"]})
        assert (changed.status_code, changed.json()["share_group"]) == (200, name)
        assert operator.get(PATH).json() == changed.json()
    refused = operator.patch(PATH, {"share_group": "nowhere"}, **{"If-Match": operator.get(PATH)["ETag"]})
    assert "/api/v1/share-groups/" in refused.json()["error"]["message"]


def test_acks_over_http(
    make_tenant: Callable[..., TenantView],
    make_worker: Callable[..., WorkerView],
    operator: Any,
    with_key: Callable[[str], Any],
    actor: Actor,
) -> None:
    """`applied on 1/1 workers in N ms`; a tenant sees the acks of its own versions alone."""
    mine, theirs = make_tenant("mine"), make_tenant("theirs")
    make_worker("worker-0")
    policy = selectors.policy(mine.id)
    assert policy is not None
    path = f"policy-versions/{policy.version}/acks/"
    waiting = operator.get(path).json()
    assert (waiting["applied"], waiting["of"], waiting["ms"]) == (0, 1, None)
    nothing = {"applied_at": None, "ms": None, "settled_at": None, "over_bytes": 0, "settle_seconds": 0.0}
    assert waiting["workers"] == [{"worker_id": "worker-0", **nothing}]
    mark_applied(worker_id="worker-0", version=policy.version, applied_at=timezone.now())
    done = operator.get(path).json()
    assert (done["applied"], done["of"], done["tenant_id"]) == (1, 1, mine.id)
    assert 0 <= done["ms"] < 60_000
    for tenant, status in ((mine, 200), (theirs, 404)):
        raw = create_management_key(name="k", role="admin", actor=actor, tenant_id=tenant.id).secret
        assert with_key(raw).get(path).status_code == status
    for version in (0, 10**9, 2**63, 10**40):
        assert operator.get(f"policy-versions/{version}/acks/").status_code == 404


def test_acks_of_a_groups_version_over_http(
    make_tenant: Callable[..., TenantView],
    make_worker: Callable[..., WorkerView],
    operator: Any,
    with_key: Callable[[str], Any],
    actor: Actor,
) -> None:
    """A change of a group is followed like one of a policy: by operators, and by members as long as they are."""
    member, stranger = make_tenant("member"), make_tenant("stranger")
    make_worker("worker-0")
    group = create_share_group(name="docs", description="", kv_soft_bytes=0, kv_hard_bytes=1, actor=actor)
    policy = set_policy(tenant_id=member.id, expected_version=1, changes={"share_group": "docs"}, actor=actor)
    path = f"policy-versions/{group.version}/acks/"
    waiting = operator.get(path).json()
    assert (waiting["tenant_id"], waiting["share_group"], waiting["applied"], waiting["of"]) == (None, "docs", 0, 1)
    mark_applied(worker_id="worker-0", version=policy.version, applied_at=timezone.now())
    done = operator.get(path).json()
    assert (done["applied"], done["of"]) == (1, 1)
    assert 0 <= done["ms"] < 60_000
    assert operator.get(f"policy-versions/{policy.version}/acks/").json()["share_group"] == ""
    keys = {
        tenant.slug: with_key(create_management_key(name="k", role="admin", actor=actor, tenant_id=tenant.id).secret)
        for tenant in (member, stranger)
    }
    assert {slug: key.get(path).status_code for slug, key in keys.items()} == {"member": 200, "stranger": 404}
    remove_share_group(name="docs", actor=actor, detach=True)
    assert {slug: key.get(path).status_code for slug, key in keys.items()} == {"member": 404, "stranger": 404}
    assert operator.get(path).status_code == 200
