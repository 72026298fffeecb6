"""Registered prefixes over HTTP: an operator's way and a member tenant's."""

import uuid
from collections.abc import Callable
from typing import Any

import pytest

from tenants import selectors
from tenants.api.views import prefixes as views
from tenants.contracts import Actor, KeyOptions, TenantView
from tenants.models import User
from tenants.rules.prefixes import MOST_OF_TENANT, MOST_PREFIXES
from tenants.services.keys import create_management_key
from tenants.services.policy import set_policy
from tenants.services.prefixes import register_prefix
from tenants.services.share_groups import create_share_group, remove_share_group
from tenants.services.tenants import update_tenant

OF_GROUP = "share-groups/docs/prefixes/"
OF_TENANT = "tenants/acme/prefixes/"
CHAT = [{"role": "system", "content": " Be brief. "}, {"role": "user", "content": "é\n"}]


@pytest.fixture(autouse=True)
def group(db: None, actor: Actor) -> None:
    """Create a share group named docs."""
    create_share_group(name="docs", description="", kv_soft_bytes=0, kv_hard_bytes=1, actor=actor)


@pytest.fixture
def member(make_tenant: Callable[..., TenantView]) -> TenantView:
    """Return acme, a member of docs."""
    return make_tenant("acme", policy={"share_group": "docs"})


@pytest.fixture
def owner(member: TenantView, with_key: Callable[[str], Any], actor: Actor) -> Any:
    """Return a client with a key of acme's owner."""
    return with_key(create_management_key(name="own", role="owner", actor=actor, tenant_id=member.id).secret)


def leave(tenant: TenantView, actor: Actor) -> None:
    """Take a tenant out of its group."""
    policy = selectors.policy(tenant.id)
    assert policy is not None
    set_policy(tenant_id=tenant.id, expected_version=policy.version, changes={"share_group": ""}, actor=actor)


@pytest.mark.parametrize("path", [OF_GROUP, OF_TENANT])
def test_a_prefix_is_registered_listed_read_and_removed(
    member: TenantView, operator: Any, owner: Any, path: str
) -> None:
    """Lists have sizes, one alone has the contents, to the character."""
    api = operator if path == OF_GROUP else owner
    created = api.post(path, {"name": "Support", "messages": CHAT})
    assert created.status_code == 201
    shown = created.json()
    assert shown.items() >= {"group": "docs", "name": "Support", "num_messages": 2, "num_bytes": 14}.items()
    assert shown["removable"] is True
    assert shown["version"] == selectors.policy_version()
    assert api.get(f"policy-versions/{shown['version']}/acks/").json()["share_group"] == "docs"
    assert api.get(path).json()["data"] == [shown]
    assert api.get(f"{path}{shown['id']}/").json() == shown | {"messages": CHAT, "text": ""}
    text = api.post(path, {"name": "Story", "text": "\tOnce\n"}).json()
    assert (text["num_messages"], text["num_bytes"]) == (0, 6)
    assert api.get(f"{path}{text['id']}/").json() == text | {"messages": [], "text": "\tOnce\n"}
    assert api.delete(f"{path}{shown['id']}/").status_code == 204
    assert api.get(f"{path}{shown['id']}/").status_code == 404
    assert api.delete(f"{path}{shown['id']}/").status_code == 404
    assert [row["name"] for row in api.get(path).json()["data"]] == ["Story"]


def test_a_list_is_paged_and_never_reads_contents(operator: Any, actor: Actor, django_assert_num_queries: Any) -> None:
    """64 prefixes may hold 16 MiB: a page of them is names and sizes, by name."""
    names = [f"p{n}" for n in range(5)]
    for name in reversed(names):
        register_prefix(group="docs", name=name, text="x" * 1000, actor=actor)
    with django_assert_num_queries(4) as queries:  # the key and its last use, the group, the page
        page = operator.get(f"{OF_GROUP}?limit=3").json()
    assert not any('prefix"."text"' in query["sql"] for query in queries)
    rest = operator.get(f"{OF_GROUP}?limit=3&cursor={page['next_cursor']}").json()
    assert [row["name"] for row in page["data"] + rest["data"]] == names
    assert "xxx" not in str(page)


@pytest.mark.parametrize(
    ("param", "body"),
    [
        ("name", {"text": "x"}),
        ("name", {"name": None, "text": "x"}),
        ("messages", {"name": "p"}),
        ("messages", {"name": "p", "messages": []}),
        ("messages", {"name": "p", "messages": CHAT, "text": "x"}),
        ("messages", {"name": "p", "messages": CHAT * 33}),
        ("messages", {"name": "p", "messages": "x"}),
        ("messages.1.role", {"name": "p", "messages": [CHAT[0], {"role": "tool", "content": "x"}]}),
        ("messages.0.content", {"name": "p", "messages": [{"role": "user", "content": None}]}),
        ("messages.0.content", {"name": "p", "messages": [{"role": "user", "content": "\ud800"}]}),
        ("messages.0.tool_calls", {"name": "p", "messages": [{"role": "user", "content": "x", "tool_calls": []}]}),
        ("messages.0.\\ud800", {"name": "p", "messages": [{"role": "user", "content": "x", "\ud800": 1}]}),
        ("text", {"name": "p", "text": None}),
        ("text", {"name": "p", "text": "a\0"}),
        ("text", {"name": "p", "text": "é" * ((128 << 10) + 1)}),
        ("tenant_id", {"name": "p", "text": "x", "tenant_id": str(uuid.UUID(int=0))}),
        ("group", {"name": "p", "text": "x", "group": "other"}),
        (None, ["p"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_body_registers_nothing(owner: Any, operator: Any, param: str | None, body: Any) -> None:
    """The field is named, down to the message; nothing of the contents is repeated; no version is used up."""
    start = selectors.policy_version()
    for api, path in ((owner, OF_TENANT), (operator, OF_GROUP)):
        refused = api.post(path, body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
        assert "Be brief" not in refused.json()["error"]["message"]
    assert selectors.policy_version() == start


def test_the_largest_prefix_passes_in_any_script(owner: Any) -> None:
    """256 KiB, however a client's JSON writer escapes them; a body over 1 MiB is not even read."""
    for n, character in enumerate(("x", '"', "é", "語", "😀")):
        body = {"name": f"p{n}", "text": character * ((256 << 10) // len(character.encode()))}
        made = owner.post(OF_TENANT, body)  # `json.dumps` writes \\uXXXX for all but ASCII
        assert (made.status_code, made.json()["num_bytes"] >> 10) == (201, 256 if character != "語" else 255)
        whole = owner.get(f"{OF_TENANT}{made.json()['id']}/").json()
        assert whole["text"] == body["text"]
    assert owner.post(OF_TENANT, {"name": "q", "text": "x" * (1 << 20)}).status_code == 413


def test_taken_names_and_full_groups_are_409(owner: Any, operator: Any, actor: Actor) -> None:
    """The message says what to do."""
    for n in range(MOST_PREFIXES - 1):
        register_prefix(group="docs", name=f"p{n}", text="x", actor=actor)
    body = {"name": "last", "text": "x"}
    taken = owner.post(OF_TENANT, body | {"name": "p7"})
    assert (taken.status_code, "another name" in taken.json()["error"]["message"]) == (409, True)
    assert owner.post(OF_TENANT, body).status_code == 201
    for api, path in ((owner, OF_TENANT), (operator, OF_GROUP)):
        full = api.post(path, {"name": "more", "text": "x"})
        assert (full.status_code, full.json()["error"]["code"]) == (409, "conflict")
        assert "remove one" in full.json()["error"]["message"]


def test_a_quota_is_a_409_on_a_tenants_path_and_not_on_an_operators(
    member: TenantView, owner: Any, operator: Any, actor: Actor
) -> None:
    """An operator who acts for the tenant is held to its quota as well; on the group's path it is not asked."""
    for n in range(MOST_OF_TENANT):
        register_prefix(group="docs", name=f"p{n}", text="x", tenant_id=member.id, actor=actor)
    body = {"name": "more", "text": "x"}
    for api in (owner, operator):
        refused = api.post(OF_TENANT, body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "conflict")
        assert "16 of the share group's 64" in refused.json()["error"]["message"]
    assert operator.post(OF_GROUP, body).status_code == 201


def test_members_read_all_and_remove_their_own(
    owner: Any, operator: Any, make_tenant: Callable[..., TenantView], with_key: Callable[[str], Any], actor: Actor
) -> None:
    """Contents are shared; who the others are is not, nor may one remove what theirs is."""
    other = make_tenant("other", policy={"share_group": "docs"})
    theirs = with_key(create_management_key(name="their key", role="owner", actor=actor, tenant_id=other.id).secret)
    made = {
        "own": owner.post(OF_TENANT, {"name": "own", "text": "one"}).json(),
        "theirs": theirs.post("tenants/other/prefixes/", {"name": "theirs", "text": "two"}).json(),
        "operators": operator.post(OF_GROUP, {"name": "operators", "text": "three"}).json(),
    }
    seen = {row["name"]: row for row in owner.get(OF_TENANT).json()["data"]}
    assert {name: (row["tenant"], row["removable"]) for name, row in seen.items()} == {
        "own": ("acme", True),
        "theirs": (None, False),
        "operators": (None, False),
    }
    assert (seen["own"]["created_by"] is not None, seen["theirs"]["created_by"]) == (True, None)
    for name in ("theirs", "operators"):
        path = f"{OF_TENANT}{made[name]['id']}/"
        assert owner.get(path).json()["text"] in ("two", "three")
        assert "their key" not in owner.get(path).content.decode()
        refused = owner.delete(path)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "forbidden")
    rows = {row["name"]: row for row in operator.get(OF_GROUP).json()["data"]}
    assert {name: row["tenant"] for name, row in rows.items()} == {"own": "acme", "theirs": "other", "operators": None}
    assert all(row["removable"] and row["created_by"] for row in rows.values())
    assert operator.delete(f"{OF_GROUP}{made['theirs']['id']}/").status_code == 204
    removable = {row["name"]: row["removable"] for row in operator.get(OF_TENANT).json()["data"]}
    assert removable == {"own": True, "operators": False}  # on a tenant's path an operator acts for the tenant


@pytest.mark.parametrize(
    ("role", "writes"), [("viewer", False), ("developer", False), ("admin", True), ("owner", True)]
)
def test_every_role_reads_and_owners_and_admins_write(
    member: TenantView,
    make_user: Callable[..., User],
    signed_in: Callable[[User], Any],
    actor: Actor,
    role: str,
    writes: bool,
) -> None:
    """Who may not write gets a 403 that says so, and nothing happens."""
    there = register_prefix(group="docs", name="there", text="x", tenant_id=member.id, actor=actor)
    api = signed_in(make_user("me@example.com", member, role))
    (row,) = api.get(OF_TENANT).json()["data"]
    assert row["removable"] is writes
    assert api.get(f"{OF_TENANT}{there.id}/").json()["text"] == "x"
    assert api.post(OF_TENANT, {"name": "new", "text": "x"}).status_code == (201 if writes else 403)
    assert api.delete(f"{OF_TENANT}{there.id}/").status_code == (204 if writes else 403)
    names = [prefix.name for prefix in selectors.shared_prefixes("docs")]
    assert names == (["new"] if writes else ["there"])


def test_a_key_needs_the_scope_write(member: TenantView, with_key: Callable[[str], Any], actor: Actor) -> None:
    """A reading key of an owner reads."""
    options = KeyOptions(scopes=("read",))
    raw = create_management_key(name="k", role="owner", actor=actor, tenant_id=member.id, options=options).secret
    api = with_key(raw)
    assert api.get(OF_TENANT).status_code == 200
    assert api.post(OF_TENANT, {"name": "p", "text": "x"}).status_code == 403
    assert api.delete(f"{OF_TENANT}{uuid.uuid4()}/").status_code == 403


def test_a_stranger_finds_no_tenant(
    member: TenantView, make_tenant: Callable[..., TenantView], with_key: Callable[[str], Any], actor: Actor
) -> None:
    """Also a fellow member of the group is a stranger to the tenant: its path equals one that is not there."""
    there = register_prefix(group="docs", name="p", text="x", tenant_id=member.id, actor=actor)
    fellow = make_tenant("fellow", policy={"share_group": "docs"})
    api = with_key(create_management_key(name="k", role="owner", actor=actor, tenant_id=fellow.id).secret)
    for method, path, body in (
        ("GET", "", None),
        ("POST", "", {"name": "q", "text": "x"}),
        ("GET", f"{there.id}/", None),
        ("DELETE", f"{there.id}/", None),
    ):
        answers = [api.call(method, f"tenants/{slug}/prefixes/{path}", body) for slug in ("acme", "nowhere")]
        assert [answer.status_code for answer in answers] == [404, 404]
        assert answers[0].content == answers[1].content
    assert api.get(f"tenants/fellow/prefixes/{there.id}/").status_code == 200


def test_a_tenant_without_a_group_is_told_who_can_help(member: TenantView, owner: Any, actor: Actor) -> None:
    """409 on every method, before any question of what is there."""
    made = owner.post(OF_TENANT, {"name": "p", "text": "x"}).json()
    leave(member, actor)
    for method, path, body in (
        ("GET", OF_TENANT, None),
        ("POST", OF_TENANT, {"name": "q", "text": "x"}),
        ("GET", f"{OF_TENANT}{made['id']}/", None),
        ("DELETE", f"{OF_TENANT}{made['id']}/", None),
    ):
        refused = owner.call(method, path, body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "conflict")
        assert "operator" in refused.json()["error"]["message"]
    assert len(selectors.shared_prefixes("docs")) == 1


def test_prefixes_of_another_group_are_out_of_reach(owner: Any, operator: Any, actor: Actor) -> None:
    """By id, under the own tenant's path or another group's."""
    create_share_group(name="other", description="", kv_soft_bytes=0, kv_hard_bytes=1, actor=actor)
    foreign = register_prefix(group="other", name="p", text="x", actor=actor)
    for api, path in ((owner, OF_TENANT), (operator, OF_GROUP)):
        for missing in (foreign.id, uuid.uuid4()):
            assert api.get(f"{path}{missing}/").status_code == 404
            assert api.delete(f"{path}{missing}/").status_code == 404
        assert api.get(f"{path}not-an-id/").status_code == 404
    assert operator.get("share-groups/nowhere/prefixes/").status_code == 404
    assert len(selectors.shared_prefixes("other")) == 1


@pytest.mark.parametrize("ends", ["membership", "group"])
def test_what_ends_between_look_and_write_is_a_409(
    member: TenantView, owner: Any, actor: Actor, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """The membership or the whole group goes after the request was let in: nothing is registered anywhere."""
    real = views.register_prefix

    def late(**call: Any) -> Any:
        if ends == "membership":
            leave(member, actor)
        else:
            remove_share_group(name="docs", actor=actor, detach=True)
        return real(**call)

    monkeypatch.setattr(views, "register_prefix", late)
    refused = owner.post(OF_TENANT, {"name": "p", "text": "x"})
    assert (refused.status_code, "no member" in refused.json()["error"]["message"]) == (409, True)
    assert selectors.shared_prefixes("docs") == []


def test_a_suspended_tenants_prefixes_stay(member: TenantView, owner: Any, operator: Any, actor: Actor) -> None:
    """An operator sees and removes them."""
    made = owner.post(OF_TENANT, {"name": "p", "text": "x"}).json()
    update_tenant(tenant_id=member.id, changes={"status": "suspended"}, actor=actor)
    assert [row["id"] for row in operator.get(OF_GROUP).json()["data"]] == [made["id"]]
    assert operator.delete(f"{OF_GROUP}{made['id']}/").status_code == 204


def test_contents_are_in_no_trail_and_no_log(
    member: TenantView, owner: Any, operator: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Registered, read, refused and removed: what it says is nowhere but in the answer to a read."""
    made = owner.post(OF_TENANT, {"name": "p", "text": "a secret recipe"}).json()
    owner.get(f"{OF_TENANT}{made['id']}/")
    owner.post(OF_TENANT, {"name": "p", "text": "a secret recipe"})
    owner.post(OF_TENANT, {"name": "q", "text": "a secret recipe\0"})
    owner.delete(f"{OF_TENANT}{made['id']}/")
    trail = owner.get("tenants/acme/audit/").json()["data"]
    assert [event["action"] for event in trail][:2] == ["prefix.removed", "prefix.registered"]
    assert "recipe" not in str(trail) + operator.get("audit/").content.decode()
    assert "recipe" not in "".join(capsys.readouterr())
