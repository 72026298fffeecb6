"""Share groups over HTTP."""

from collections.abc import Callable
from typing import Any

import pytest

from tenants import selectors
from tenants.contracts import Actor, KeyOptions, TenantView, WorkerView
from tenants.models import User
from tenants.services.keys import create_management_key
from tenants.services.prefixes import register_prefix

DOCS = "share-groups/docs/"
BODY = {"name": "docs", "description": "Handbooks", "kv_soft_bytes": 10, "kv_hard_bytes": 100}


@pytest.fixture
def group(operator: Any) -> dict[str, Any]:
    """Create a group named docs and return it as it was answered."""
    return dict(operator.post("share-groups/", BODY).json())


def test_a_group_is_created_read_and_listed(operator: Any) -> None:
    """The answer of the creation is what is read later; the ETag is the version."""
    created = operator.post("share-groups/", BODY)
    assert created.status_code == 201
    view = created.json()
    assert view.items() >= (BODY | {"num_prefixes": 0, "tenants": [], "version": selectors.policy_version()}).items()
    read = operator.get(DOCS)
    assert (read.json(), read["ETag"]) == (view, created["ETag"])
    assert created["ETag"] == f'"{view["version"]}"'
    assert operator.get("share-groups/").json()["data"] == [view]


def test_limits_have_defaults(operator: Any) -> None:
    """A name is enough: no guarantee, the ceiling of a new tenant."""
    view = operator.post("share-groups/", {"name": "docs"}).json()
    assert (view["description"], view["kv_soft_bytes"], view["kv_hard_bytes"]) == ("", 0, 256 << 20)


def test_groups_are_paged_by_name(operator: Any) -> None:
    """Page after page, each group once."""
    names = [f"g{n}" for n in range(5)]
    for name in reversed(names):
        operator.post("share-groups/", {"name": name})
    seen: list[str] = []
    cursor = ""
    while True:
        page = operator.get(f"share-groups/?limit=2{cursor}").json()
        seen += [row["name"] for row in page["data"]]
        if not page["has_more"]:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert seen == names


@pytest.mark.parametrize(
    ("param", "body"),
    [
        ("name", {}),
        ("name", {"name": "No slug"}),
        ("name", {"name": 7}),
        ("name", {"name": "a" * 41}),
        ("kv_soft_bytes", {"name": "x", "kv_soft_bytes": 2, "kv_hard_bytes": 1}),
        ("kv_hard_bytes", {"name": "x", "kv_hard_bytes": "1"}),
        ("description", {"name": "x", "description": None}),
        ("overcommit", {"name": "x", "overcommit": 1}),
        ("secret", {"name": "x", "secret": "x"}),
        (None, []),
        ("name", None),
    ],
    ids=str,
)
def test_a_wrong_body_creates_nothing(operator: Any, param: str | None, body: Any) -> None:
    """The field is named; no version is used up."""
    refused = operator.post("share-groups/", body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
    assert selectors.policy_version() == 0


def test_a_taken_name_is_409(group: dict[str, Any], operator: Any) -> None:
    """Until the group is removed; then the name makes a new one."""
    refused = operator.post("share-groups/", BODY)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "conflict")
    assert operator.delete(DOCS).status_code == 204
    again = operator.post("share-groups/", BODY)
    assert again.status_code == 201
    assert again.json()["version"] > group["version"]


def test_a_change_names_the_version_that_was_read(group: dict[str, Any], operator: Any) -> None:
    """428 without it, 412 with the current ETag when it is stale, 400 when it is none."""
    assert operator.patch(DOCS, {"kv_hard_bytes": 200}).status_code == 428
    etag = operator.get(DOCS)["ETag"]
    changed = operator.patch(DOCS, {"kv_hard_bytes": 200, "description": ""}, **{"If-Match": etag})
    assert (changed.status_code, changed.json()["kv_hard_bytes"], changed.json()["description"]) == (200, 200, "")
    assert changed["ETag"] == f'"{changed.json()["version"]}"' != etag
    stale = operator.patch(DOCS, {"kv_hard_bytes": 300}, **{"If-Match": etag})
    assert (stale.status_code, stale["ETag"]) == (412, changed["ETag"])
    assert "share group" in stale.json()["error"]["message"]
    for header in ("", "*", 'W/"1"', '"1", "2"', "9" * 40):
        refused = operator.patch(DOCS, {"kv_hard_bytes": 300}, **{"If-Match": header})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "If-Match")
    assert operator.get(DOCS).json() == changed.json()


@pytest.mark.parametrize(
    ("param", "body"),
    [
        ("kv_soft_bytes", {"kv_soft_bytes": 101}),
        ("name", {"name": "other"}),
        ("version", {"version": 9}),
        ("removed", {"removed": True}),
        ("overcommit", {"overcommit": "yes", "kv_soft_bytes": 1}),
        (None, {}),
        (None, {"overcommit": True}),
    ],
    ids=str,
)
def test_a_wrong_change_changes_nothing(group: dict[str, Any], operator: Any, param: str | None, body: Any) -> None:
    """The field is named; no version is used up."""
    refused = operator.patch(DOCS, body, **{"If-Match": operator.get(DOCS)["ETag"]})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
    assert operator.get(DOCS).json() == group


def test_guarantees_that_do_not_fit_need_overcommit(operator: Any, make_worker: Callable[..., WorkerView]) -> None:
    """At the creation and at a change."""
    make_worker(kv_bytes=1000)
    body = {"name": "docs", "kv_soft_bytes": 901}
    refused = operator.post("share-groups/", body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "kv_soft_bytes")
    etag = operator.post("share-groups/", body | {"overcommit": True})["ETag"]
    assert operator.patch(DOCS, {"kv_soft_bytes": 902}, **{"If-Match": etag}).status_code == 400
    body = {"kv_soft_bytes": 902, "overcommit": True}
    assert operator.patch(DOCS, body, **{"If-Match": etag}).status_code == 200


def test_a_group_in_use_is_removed_with_detach_alone(
    group: dict[str, Any], make_tenant: Callable[..., TenantView], operator: Any
) -> None:
    """409 says whose policies name it; with `detach` they leave it, and a policy can name it no more."""
    make_tenant("acme", policy={"share_group": "docs"})
    assert operator.get(DOCS).json()["tenants"] == ["acme"]
    for path in (DOCS, f"{DOCS}?detach=false"):
        refused = operator.delete(path)
        assert refused.status_code == 409
        assert "acme" in refused.json()["error"]["message"]
    etag = operator.get("tenants/acme/policy/")["ETag"]
    assert operator.delete(f"{DOCS}?detach=true").status_code == 204
    assert operator.get(DOCS).status_code == 404
    policy = operator.get("tenants/acme/policy/")
    assert policy.json()["share_group"] == ""
    assert operator.patch("tenants/acme/policy/", {"rpm": 1}, **{"If-Match": etag}).status_code == 412
    refused = operator.patch("tenants/acme/policy/", {"share_group": "docs"}, **{"If-Match": policy["ETag"]})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "share_group")


def test_a_removal_keeps_to_if_match_and_to_known_parameters(
    group: dict[str, Any], operator: Any, actor: Actor
) -> None:
    """Whoever names a version removes that one; a mistyped parameter removes nothing."""
    register_prefix(group="docs", name="p", text="x", actor=actor)
    stale = operator.delete(DOCS, **{"If-Match": f'"{group["version"]}"'})
    assert (stale.status_code, stale["ETag"]) == (412, operator.get(DOCS)["ETag"])
    for query in ("detatch=true", "detach=perhaps"):
        refused = operator.delete(f"{DOCS}?{query}")
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, query.split("=")[0])
    assert operator.delete(DOCS, **{"If-Match": operator.get(DOCS)["ETag"]}).status_code == 204
    for method in ("GET", "DELETE"):
        assert operator.call(method, DOCS).status_code == 404
    assert operator.patch(DOCS, {"description": "x"}, **{"If-Match": '"1"'}).status_code == 404


def test_groups_are_the_operators(
    group: dict[str, Any],
    make_tenant: Callable[..., TenantView],
    make_user: Callable[..., User],
    signed_in: Callable[[User], Any],
    with_key: Callable[[str], Any],
    actor: Actor,
) -> None:
    """Nobody of a tenant sees or changes them, member or not, or can tell whether one is there; nor a reading key."""
    member = make_tenant("member", policy={"share_group": "docs"})
    owner_key = create_management_key(name="k", role="owner", actor=actor, tenant_id=member.id).secret
    for api in (with_key(owner_key), signed_in(make_user("ada@example.com", member, "owner"))):
        for method, path, body in (
            ("GET", "share-groups/", None),
            ("POST", "share-groups/", {"name": "mine"}),
            ("GET", "{}", None),
            ("PATCH", "{}", {"description": "x"}),
            ("DELETE", "{}", None),
            ("GET", "{}prefixes/", None),
            ("POST", "{}prefixes/", {"name": "p", "text": "x"}),
            ("GET", "{}prefixes/00000000-0000-0000-0000-000000000000/", None),
            ("DELETE", "{}prefixes/00000000-0000-0000-0000-000000000000/", None),
        ):
            answers = {
                (answer.status_code, answer.content)
                for answer in (
                    api.call(method, path.format(place), body, **{"If-Match": '"1"'})
                    for place in (DOCS, "share-groups/nowhere/")
                )
            }
            assert len(answers) == 1
            assert answers.pop()[0] == 403
    options = KeyOptions(scopes=("read",))
    reader = with_key(create_management_key(name="k", role="operator", actor=actor, options=options).secret)
    assert reader.get(DOCS).status_code == 200
    assert reader.delete(DOCS).status_code == 403
    assert reader.post("share-groups/", {"name": "x"}).status_code == 403
    assert selectors.share_group("docs") is not None
