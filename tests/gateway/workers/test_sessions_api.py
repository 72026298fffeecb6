"""`/api/v1/tenants/{slug}/sessions/` and `kv/`: who may do what, and what is answered."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from engine.protocol import pb
from tenants.contracts import Actor, TenantView
from tenants.models import User
from tenants.services.keys import create_management_key
from tenants.services.members import set_member
from tenants.services.tenants import create_tenant
from tests.gateway.wire.keeping import Keeper, come, go, keeping

ACTOR = Actor("system", "tests", "tests")
NOON = 1_700_000_000.0
SESSIONS = "/api/v1/tenants/acme/sessions/"
KV = "/api/v1/tenants/acme/kv/"


@pytest.fixture
def tenant(db: None) -> TenantView:
    """Return a tenant."""
    return create_tenant(slug="acme", name="Acme", actor=ACTOR)


@pytest.fixture
def one(tenant: TenantView, tmp_path: Path) -> Iterator[Keeper]:
    """Serve a worker that keeps a session of the tenant's."""
    keeper = Keeper("one")
    keeper.keep(tenant.id, "chat", used=NOON, host_bytes=1 << 20)
    with keeping(tmp_path, keeper):
        yield keeper


@pytest.fixture
def as_role(tenant: TenantView) -> Callable[[str], Client]:
    """Return a maker of clients that are signed in as a member, an operator, or a stranger (empty)."""

    def make(role: str) -> Client:
        user = User.objects.create_user(f"{role or 'stranger'}@example.com", is_staff=role == "operator")
        if role not in ("", "operator"):
            set_member(tenant_id=tenant.id, email=user.email, role=role, by_role="operator", actor=ACTOR)
        client = Client()
        client.force_login(user)
        return client

    return make


@pytest.fixture
def operator(db: None) -> Client:
    """Return a client with an operator's key."""
    raw = create_management_key(name="tests", role="operator", actor=ACTOR).secret
    return Client(headers={"authorization": f"Bearer {raw}"})


def error_of(response: Any) -> dict[str, Any]:
    """Return the error of an answer."""
    return dict(response.json()["error"])


def test_sessions_are_listed_and_read(one: Keeper, tenant: TenantView, operator: Client) -> None:
    """A session shows its size, its tier and its times, on each worker that has a copy."""
    one.keep(tenant.id, "pinned", used=NOON - 1, expires_at=0, pinned=True)
    listed = operator.get(SESSIONS).json()
    assert [session["id"] for session in listed["data"]] == ["chat", "pinned"]
    assert (listed["has_more"], listed["next_cursor"], listed["num_sessions"]) == (False, None, 2)
    assert listed["missing_workers"] == []
    assert listed["data"][1]["copies"][0]["expires_at"] is None
    read = operator.get(f"{SESSIONS}chat/").json()
    assert read["copies"] == [
        {
            "model": "tiny",
            "worker_id": "one",
            "num_tokens": 100,
            "num_turns": 2,
            "tier": "host",
            "device_bytes": 1 << 16,
            "host_bytes": 1 << 20,
            "disk_bytes": 0,
            "created_at": NOON - 5,
            "last_used_at": NOON,
            "expires_at": NOON + 3600,
            "pinned": False,
            "active": False,
        }
    ]


def test_pages_follow_a_cursor(one: Keeper, tenant: TenantView, operator: Client) -> None:
    """Every session comes once; what is no cursor, limit or parameter is refused by name."""
    for number in range(4):
        one.keep(tenant.id, f"s{number}", used=NOON - 1 - number)
    found: list[str] = []
    cursor = ""
    while cursor is not None:
        page = operator.get(SESSIONS, {"limit": "2"} | ({"cursor": cursor} if cursor else {})).json()
        found += [session["id"] for session in page["data"]]
        cursor = page["next_cursor"]
    assert found == ["chat", "s0", "s1", "s2", "s3"]
    for query in ({"limit": "0"}, {"limit": "101"}, {"limit": "x"}, {"cursor": "x"}, {"sort": "up"}):
        refused = operator.get(SESSIONS, query)
        assert refused.status_code == 400
        assert error_of(refused)["param"] == next(iter(query))


@pytest.mark.parametrize(
    ("role", "reads", "changes"),
    [
        ("", 404, 404),
        ("viewer", 200, 403),
        ("developer", 200, 200),
        ("admin", 200, 200),
        ("owner", 200, 200),
        ("operator", 200, 200),
    ],
)
def test_roles(one: Keeper, as_role: Callable[[str], Client], role: str, reads: int, changes: int) -> None:
    """Members read; developers and above pin, bring up and erase; a stranger cannot tell that there is anything."""
    client = as_role(role)
    assert client.get(SESSIONS).status_code == reads
    assert client.get(f"{SESSIONS}chat/").status_code == reads
    for action in ("pin", "unpin", "prefetch"):
        assert client.post(f"{SESSIONS}chat/{action}/").status_code == changes
    assert client.delete(f"{SESSIONS}chat/").status_code == changes
    assert one.names() == ([] if changes == 200 else ["chat"])


@pytest.mark.parametrize(
    ("role", "status"), [("", 404), ("viewer", 403), ("developer", 403), ("admin", 403), ("owner", 200)]
)
def test_an_owner_erases_all_kv(one: Keeper, as_role: Callable[[str], Client], role: str, status: int) -> None:
    """Nobody below does; the answer names the version that workers apply."""
    answer = as_role(role).delete(KV)
    assert answer.status_code == status
    assert one.names() == ([] if status == 200 else ["chat"])
    if status == 200:
        assert answer.json()["deleted"] is True
        assert answer.json()["version"] > 1


def test_changes_are_told(one: Keeper, operator: Client) -> None:
    """A change answers with the session as it then is."""
    assert operator.post(f"{SESSIONS}chat/pin/").json()["copies"][0]["pinned"] is True
    assert operator.post(f"{SESSIONS}chat/unpin/").json()["copies"][0]["pinned"] is False
    assert operator.post(f"{SESSIONS}chat/prefetch/").json()["missing_workers"] == []
    assert [action for _, action in one.changes] == [
        pb.SESSION_ACTION_PIN,
        pb.SESSION_ACTION_UNPIN,
        pb.SESSION_ACTION_PREFETCH,
    ]


@pytest.mark.parametrize("name", ["a/b", "a/pin", "pin", "a b?c#d&e=f", "東京/prefetch", "/x", "x/", "%2F", "a//b"])
def test_any_printable_id_can_be_reached(one: Keeper, tenant: TenantView, operator: Client, name: str) -> None:
    """Percent-encoded it means the session, though it look like another path of this API."""
    from urllib.parse import quote

    one.keep(tenant.id, name, used=NOON)
    path = f"{SESSIONS}{quote(name, safe='')}/"
    assert operator.get(path).json()["id"] == name
    assert operator.post(f"{path}pin/").json()["id"] == name
    assert operator.delete(path).json() == {"deleted": True, "waiting_for": []}
    assert one.names() == ["chat"]


@pytest.mark.parametrize("name", ["%00", "a%0Ab", "%C2%A0", "x" * 257, "%C3%A9" * 129])
def test_ids_that_no_session_can_have_are_refused(one: Keeper, operator: Client, name: str) -> None:
    """A 400 says what an id may be."""
    for answer in (
        operator.get(f"{SESSIONS}{name}/"),
        operator.delete(f"{SESSIONS}{name}/"),
        operator.post(f"{SESSIONS}{name}/pin/"),
    ):
        assert answer.status_code == 400
        assert error_of(answer)["param"] == "session_id"
    assert one.changes == []


def test_unknown_sessions(one: Keeper, operator: Client) -> None:
    """Nobody has it: 404. Somebody who may have it is away: 503, or, to be erased, 202."""
    path = f"{SESSIONS}never/"
    for answer in (operator.get(path), operator.post(f"{path}pin/"), operator.delete(path)):
        assert answer.status_code == 404
    come("gone")
    go("gone")
    for answer in (operator.get(path), operator.post(f"{path}pin/")):
        assert answer.status_code == 503
        assert "gone" in error_of(answer)["message"]
    erased = operator.delete(path)
    assert erased.status_code == 202
    assert erased.json()["deleted"] is False
    assert [worker["worker_id"] for worker in erased.json()["waiting_for"]] == ["gone"]


def test_another_tenant_is_not_touched(one: Keeper, tenant: TenantView, operator: Client) -> None:
    """The same id is another session with another tenant."""
    other = create_tenant(slug="other", name="Other", actor=ACTOR)
    one.keep(other.id, "chat", used=NOON)
    assert operator.delete("/api/v1/tenants/other/sessions/chat/").status_code == 200
    assert list(one.sessions) == [(tenant.id, "chat")]
