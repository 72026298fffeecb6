"""Boosts over HTTP."""

import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from tenants import selectors
from tenants.contracts import Actor, TenantView
from tenants.services.keys import create_management_key

PATH = "tenants/acme/boosts/"
POLICY = "tenants/acme/policy/"
BODY = {"changes": {"kv_hard_bytes": 1 << 30}, "duration_seconds": 3600, "reason": "load test"}


def start(api: Any, body: Any = BODY, **headers: str) -> Any:
    """Start a boost on the policy as it is."""
    return api.post(PATH, body, **({"If-Match": api.get(POLICY)["ETag"]} | headers))


def test_a_boost_begins_and_is_ended(tenant: TenantView, operator: Any) -> None:
    """201 with what changed and what it was; DELETE ends it and says with which version; once."""
    made = start(operator)
    assert made.status_code == 201
    told = made.json()
    assert (told["tenant"], told["changes"], told["before"]) == (
        "acme",
        {"kv_hard_bytes": 1 << 30},
        {"kv_hard_bytes": 256 << 20},
    )
    assert (told["ended_at"], told["ended_version"], told["reason"]) == (None, None, "load test")
    assert operator.get(POLICY).json()["kv_hard_bytes"] == 1 << 30
    assert operator.get(POLICY).json()["version"] == told["started_version"]
    assert operator.get(f"{PATH}{told['id']}/").json() == told
    ended = operator.delete(f"{PATH}{told['id']}/")
    assert ended.status_code == 200
    assert ended.json()["ended_version"] == operator.get(POLICY).json()["version"]
    assert operator.get(POLICY).json()["kv_hard_bytes"] == 256 << 20
    assert operator.delete(f"{PATH}{told['id']}/").status_code == 409
    assert operator.get(f"policy-versions/{told['started_version']}/acks/").status_code == 200


def test_a_second_is_409_and_named(tenant: TenantView, operator: Any) -> None:
    """Who wants another learns which one is in force."""
    first = start(operator).json()
    refused = start(operator)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "conflict")
    assert first["id"] in refused.json()["error"]["message"]


def test_boosts_are_listed_newest_first_by_pages(tenant: TenantView, operator: Any) -> None:
    """All that there ever were."""
    ids = []
    for number in range(3):
        made = start(operator, BODY | {"reason": f"number {number}"}).json()
        operator.delete(f"{PATH}{made['id']}/")
        ids.append(made["id"])
    page = operator.get(f"{PATH}?limit=2").json()
    assert [one["id"] for one in page["data"]] == ids[:0:-1]
    rest = operator.get(f"{PATH}?limit=2&cursor={page['next_cursor']}").json()
    assert ([one["id"] for one in rest["data"]], rest["has_more"]) == (ids[:1], False)


@pytest.mark.parametrize(
    ("param", "change"),
    [
        ("reason", {"reason": ""}),
        ("reason", {"reason": 5}),
        ("reason", {"reason": "x" * 501}),
        ("duration_seconds", {"duration_seconds": 59}),
        ("duration_seconds", {"duration_seconds": 30 * 86400 + 1}),
        ("duration_seconds", {"duration_seconds": "60"}),
        ("duration_seconds", {"duration_seconds": True}),
        ("duration_seconds", {"duration_seconds": 1e400}),
        ("ends_at", {"ends_at": "2099-01-01T00:00:00Z"}),  # both
        ("changes", {"changes": []}),
        ("changes", {"changes": None}),
        ("changes", {"changes": {}}),
        ("changes", {"changes": {"kv_hard_bytes": 256 << 20}}),
        ("kv_hard_bytes", {"changes": {"kv_hard_bytes": -1}}),
        ("kv_hard_bytes", {"changes": {"kv_hard_bytes": "1"}}),
        ("kv_soft_bytes", {"changes": {"kv_soft_bytes": 1 << 50}}),
        ("share_group", {"changes": {"share_group": "docs"}}),
        ("nonsense", {"changes": {"nonsense": 1}}),
        ("overcommit", {"overcommit": "perhaps"}),
        ("tenant", {"tenant": "other"}),
    ],
    ids=str,
)
def test_a_wrong_body_is_400_and_changes_nothing(
    tenant: TenantView, operator: Any, param: str, change: dict[str, Any]
) -> None:
    """The field is named; there is no boost and no version."""
    before = operator.get(POLICY).json()
    refused = start(operator, BODY | change)
    if change.get("duration_seconds") == 1e400:  # JSON has no such number
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, None)
    else:
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
    assert operator.get(POLICY).json() == before
    assert selectors.policy_version() == before["version"]
    assert operator.get(PATH).json()["data"] == []


@pytest.mark.parametrize(
    "ends_at", ["", "tomorrow", "2099-01-01T00:00:00", "2099-01-01T00:00:00Z", "1999-01-01T00:00:00Z", 5, None]
)
def test_a_wrong_end_is_400(tenant: TenantView, operator: Any, ends_at: Any) -> None:
    """No zone, too far, past, no time at all."""
    refused = start(operator, {"changes": {"rpm": 5}, "reason": "r", "ends_at": ends_at})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "ends_at")
    neither = start(operator, {"changes": {"rpm": 5}, "reason": "r"})
    assert (neither.status_code, neither.json()["error"]["param"]) == (400, "ends_at")


def test_an_end_may_be_named_as_a_time(tenant: TenantView, operator: Any) -> None:
    """In any zone."""
    at = (timezone.now() + timedelta(days=2)).isoformat()
    made = start(operator, {"changes": {"rpm": 5}, "reason": "r", "ends_at": at})
    assert made.status_code == 201


def test_a_stale_version_or_none_starts_nothing(tenant: TenantView, operator: Any) -> None:
    """412 with the current version, 428 without one."""
    stale = start(operator, **{"If-Match": '"999"'})
    assert (stale.status_code, stale["ETag"]) == (412, operator.get(POLICY)["ETag"])
    bare = operator.post(PATH, BODY)
    assert (bare.status_code, bare.json()["error"]["code"]) == (428, "precondition_required")


def test_operators_alone_boost(tenant: TenantView, with_key: Callable[[str], Any], operator: Any, actor: Actor) -> None:
    """A tenant reads its boosts; a stranger finds nothing."""
    made = start(operator).json()
    owner = with_key(create_management_key(name="k", role="owner", actor=actor, tenant_id=tenant.id).secret)
    assert owner.get(PATH).json()["data"][0]["id"] == made["id"]
    assert start(owner).status_code == 403
    assert owner.delete(f"{PATH}{made['id']}/").status_code == 403
    assert operator.get(f"{PATH}{uuid.uuid4()}/").status_code == 404
    assert operator.delete(f"{PATH}{uuid.uuid4()}/").status_code == 404
    assert operator.get("tenants/nobody/boosts/").status_code == 404
    assert operator.post("tenants/nobody/boosts/", BODY, **{"If-Match": '"1"'}).status_code == 404
