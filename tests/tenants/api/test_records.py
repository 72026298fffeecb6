"""Usage and audit over HTTP, a page at a time."""

import base64
import json
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from tenants.contracts import Actor, TenantView, UsageEntry
from tenants.services.keys import create_management_key
from tenants.services.tenants import update_tenant
from tenants.services.usage import record_usage

NOW = 1_900_000_000.0


def entry(request_id: str, tenant: TenantView, finished_at: float = NOW, **changes: Any) -> UsageEntry:
    """Return a usage entry."""
    usual = UsageEntry(
        request_id=request_id,
        tenant_id=tenant.id,
        project_id="",
        key_id="k",
        session="",
        model="tiny",
        worker_id="worker-0",
        prompt_tokens=1,
        cached_tokens=0,
        completion_tokens=2,
        kv_device_byte_seconds=0.0,
        queue_seconds=0.0,
        ttft_seconds=0.0,
        started_at=finished_at - 1,
        finished_at=finished_at,
        finish_reason="stop",
        num_preemptions=0,
    )
    return msgspec.structs.replace(usual, **changes)


def pages(api: Any, path: str, limit: int) -> Iterator[list[dict[str, Any]]]:
    """Yield the pages of a list, following the cursors."""
    joint = "&" if "?" in path else "?"
    cursor = ""
    while True:
        page = api.get(f"{path}{joint}limit={limit}{cursor}").json()
        assert page["object"] == "list"
        assert len(page["data"]) <= limit
        yield page["data"]
        assert page["has_more"] == (page["next_cursor"] is not None)
        if not page["has_more"]:
            return
        cursor = f"&cursor={page['next_cursor']}"


def test_pages_hold_every_record_once_newest_first(tenant: TenantView, operator: Any) -> None:
    """Also where many records share one time, and while new ones arrive."""
    record_usage([entry(f"req-{n:02}", tenant, NOW + n // 4) for n in range(23)])
    seen: list[str] = []
    for n, page in enumerate(pages(operator, "usage/?tenant=acme", 5)):
        seen += [row["request_id"] for row in page]
        record_usage([entry(f"late-{n}", tenant, NOW + 1000)])
    assert seen == [f"req-{n:02}" for n in reversed(range(23))]


def test_a_record_over_http(tenant: TenantView, operator: Any) -> None:
    """With its tenant's slug; a record of nobody has none."""
    record_usage([entry("req", tenant), entry("lost", tenant, NOW - 1, tenant_id="")])
    first, second = operator.get("usage/").json()["data"]
    assert (first["request_id"], first["tenant"], first["completion_tokens"]) == ("req", "acme", 2)
    assert (second["request_id"], second["tenant"]) == ("lost", None)


def test_filters(tenant: TenantView, operator: Any) -> None:
    """Each filter filters, `since` includes its moment and `until` does not."""
    record_usage(
        [
            entry("a", tenant, NOW),
            entry("b", tenant, NOW + 10, key_id="other", model="big", finish_reason="length", session="s"),
            entry("c", tenant, NOW + 20, project_id="00000000-0000-0000-0000-00000000000b"),
        ]
    )

    def found(query: str) -> str:
        return "".join(row["request_id"] for row in operator.get(f"usage/?{query}").json()["data"])

    assert found("") == "cba"
    assert found("key_id=other") == found("model=big") == found("finish_reason=length") == found("session=s") == "b"
    assert found("project_id=00000000-0000-0000-0000-00000000000b") == "c"
    assert found("since=2030-03-17T17:46:50Z") == "cb"
    assert found("until=2030-03-17T17:46:50Z") == "a"
    assert found("since=2030-03-17T18:46:50%2B01:00&until=2030-03-17T17:47:00Z") == "b"
    assert found("key_id=other&model=tiny") == ""


def test_a_tenant_sees_its_own_usage_alone(
    make_tenant: Callable[..., TenantView], with_key: Callable[[str], Any], operator: Any, actor: Actor
) -> None:
    """With and without naming itself."""
    mine, theirs = make_tenant("mine"), make_tenant("theirs")
    record_usage([entry("m", mine), entry("t", theirs)])
    raw = create_management_key(name="k", role="admin", actor=actor, tenant_id=mine.id).secret
    for path in ("usage/", "usage/?tenant=mine"):
        assert [row["request_id"] for row in with_key(raw).get(path).json()["data"]] == ["m"]
    assert len(operator.get("usage/").json()["data"]) == 2


@pytest.mark.parametrize(
    ("param", "query"),
    [
        ("limit", "limit=0"),
        ("limit", "limit=201"),
        ("limit", "limit=-1"),
        ("limit", "limit=x"),
        ("limit", "limit=" + "9" * 5000),
        ("limit", "limit=%C2%B2"),
        ("cursor", "cursor="),
        ("cursor", "cursor=nonsense"),
        ("cursor", "cursor=%00"),
        ("cursor", "cursor=%F0%9F%92%A9"),
        ("since", "since=yesterday"),
        ("since", "since=2030-01-01T00:00:00"),
        ("until", "until=0001-01-01T00:00:00%2B14:00"),
        ("tenant", "tenant=a%00b"),
        ("session", "session=%00"),
        ("finish_reason", "finish_reason=tired"),
        ("project_id", "project_id=1"),
        ("nonsense", "nonsense=1"),
    ],
)
def test_a_wrong_query_is_400_by_name(tenant: TenantView, operator: Any, param: str, query: str) -> None:
    """Also an unknown filter: ignoring it would show what was to be left out."""
    refused = operator.get(f"usage/?{query}")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    "place",
    [
        [],
        ["2030-01-01T00:00:00+00:00"],
        ["2030-01-01T00:00:00", "x"],
        ["x", "x"],
        [1, "x"],
        ["2030-01-01T00:00:00+00:00", "a\u0000"],
        ["2030-01-01T00:00:00+00:00", "\ud800"],
        ["2030-01-01T00:00:00+00:00", 7],
        ["2030-01-01T00:00:00+00:00", "x", "x"],
        {"a": 1},
        None,
    ],
    ids=str,
)
def test_a_forged_cursor_is_400(tenant: TenantView, operator: Any, place: Any) -> None:
    """Whatever it decodes to, it moves the place in the list or is refused."""
    cursor = base64.urlsafe_b64encode(json.dumps(place).encode()).decode().rstrip("=")
    refused = operator.get(f"usage/?cursor={cursor}")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "cursor")


def test_audit_over_http(tenant: TenantView, operator: Any, with_key: Callable[[str], Any], actor: Actor) -> None:
    """Newest first, by filters, with before and after; a tenant's admins see their own."""
    for n in range(5):
        update_tenant(tenant_id=tenant.id, changes={"name": f"n{n}"}, actor=actor)
    rows = [row for page in pages(operator, "tenants/acme/audit/?action=tenant.changed", 2) for row in page]
    assert [row["after"]["name"] for row in rows] == ["n4", "n3", "n2", "n1", "n0"]
    assert rows[0]["before"]["name"] == "n3"
    raw = create_management_key(name="k", role="admin", actor=actor, tenant_id=tenant.id).secret
    own = with_key(raw).get("tenants/acme/audit/").json()["data"]
    assert {row["tenant_id"] for row in own} == {tenant.id}
    everything = operator.get("audit/").json()["data"]
    assert {row["action"] for row in everything} > {row["action"] for row in own} - {"management_key.created"}
    assert any(row["tenant_id"] is None for row in everything)


def test_every_list_is_paged(make_tenant: Callable[..., TenantView], operator: Any) -> None:
    """Ascending lists too."""
    for n in range(5):
        make_tenant(f"t{n}")
        operator.post("tenants/t0/keys/", {"name": f"k{n}"})
        operator.post("tenants/t0/projects/", {"name": f"p{n}"})
    slugs = [row["slug"] for page in pages(operator, "tenants/", 2) for row in page]
    assert slugs == ["t0", "t1", "t2", "t3", "t4"]
    assert [row["name"] for page in pages(operator, "tenants/t0/keys/", 2) for row in page] == [
        "k4",
        "k3",
        "k2",
        "k1",
        "k0",
    ]
    assert len([row for page in pages(operator, "tenants/t0/projects/", 2) for row in page]) == 6
