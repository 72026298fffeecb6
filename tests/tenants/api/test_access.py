"""Who gets in, as what, and what they may do."""

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from tenants import keys
from tenants.contracts import Actor, KeyOptions, TenantView
from tenants.models import ManagementKey, User
from tenants.services.keys import create_api_key, create_management_key, revoke_key
from tenants.services.members import remove_member, set_member

READS = ["", "keys/", "policy/", "projects/", "members/"]


def code_of(response: Any) -> str:
    """Return an error's code."""
    return str(response.json()["error"]["code"])


def test_a_stranger_gets_401_with_a_challenge(tenant: TenantView, with_key: Callable[[str], Any]) -> None:
    """Without credentials, with made-up ones, with an API key, with another scheme."""
    raw = create_api_key(tenant_id=tenant.id, name="k", actor=Actor("system", "t", "t")).secret
    nobody = with_key("")
    nobody.headers = {}
    for api in (nobody, with_key(""), with_key("nonsense"), with_key(keys.new_key("op")), with_key(raw)):
        response = api.get("tenants/")
        assert response.status_code == 401
        assert response["WWW-Authenticate"].startswith("Bearer")
        assert response.json()["error"]["type"] == "authentication_error"
    assert "management key" in with_key(raw).get("tenants/").json()["error"]["message"]
    basic = with_key("")
    basic.headers = {"Authorization": "Basic dTpw"}
    assert basic.get("tenants/").status_code == 401


def test_a_revoked_or_expired_management_key_is_out(db: None, with_key: Callable[[str], Any], actor: Actor) -> None:
    """At the next request."""
    made = [create_management_key(name="k", role="operator", actor=actor) for _ in range(2)]
    assert all(with_key(one.secret).get("workers/").status_code == 200 for one in made)
    revoke_key(key_id=made[0].key.id, tenant_id=None, actor=actor)
    ManagementKey.objects.across_tenants().filter(pk=made[1].key.id).update(expires_at=timezone.now())
    assert [with_key(one.secret).get("workers/").status_code for one in made] == [401, 401]


def test_last_use_of_a_management_key_is_coarse(db: None, with_key: Callable[[str], Any], actor: Actor) -> None:
    """The first request notes it; one within the minute writes no new time."""
    made = create_management_key(name="k", role="operator", actor=actor)
    with_key(made.secret).get("workers/")
    first = ManagementKey.objects.across_tenants().get().last_used_at
    assert first is not None
    with_key(made.secret).get("workers/")
    assert ManagementKey.objects.across_tenants().get().last_used_at == first


@pytest.mark.parametrize(
    ("ranges", "remote", "status"),
    [
        (("10.0.0.0/8",), "10.9.9.9", 200),
        (("10.0.0.0/8",), "::ffff:10.9.9.9", 200),
        (("10.0.0.0/8", "::1/128"), "::1", 200),
        (("10.0.0.0/8",), "11.0.0.1", 401),
        (("10.0.0.0/8",), "", 401),
    ],
)
def test_a_key_bound_to_addresses(db: None, actor: Actor, ranges: tuple[str, ...], remote: str, status: int) -> None:
    """It opens from within its ranges alone."""
    options = KeyOptions(scopes=("read",), ip_ranges=ranges)
    raw = create_management_key(name="k", role="operator", actor=actor, options=options).secret
    client = Client(headers={"Authorization": f"Bearer {raw}"}, REMOTE_ADDR=remote)
    assert client.get("/api/v1/workers/").status_code == status


def test_a_hidden_tenant_looks_like_none(
    make_tenant: Callable[..., TenantView],
    make_user: Callable[..., User],
    signed_in: Callable[[User], Any],
    with_key: Callable[[str], Any],
    actor: Actor,
) -> None:
    """A stranger's answer for a tenant that is there equals that for one that is not, on every path and method."""
    mine, theirs = make_tenant("mine"), make_tenant("theirs")
    theirs_key = create_api_key(tenant_id=theirs.id, name="k", actor=actor).key
    adm = create_management_key(name="k", role="owner", actor=actor, tenant_id=mine.id).secret
    for api in (with_key(adm), signed_in(make_user("ada@example.com", mine, "owner"))):
        assert [row["slug"] for row in api.get("tenants/").json()["data"]] == ["mine"]
        for path in (*READS, "audit/", "management-keys/", f"keys/{theirs_key.id}/"):
            there, nowhere = (api.get(f"tenants/{slug}/{path}") for slug in ("theirs", "nowhere"))
            assert (there.status_code, there.content) == (404, nowhere.content)
        for method, path, body in (
            ("PATCH", "", {"name": "x"}),
            ("PATCH", "policy/", {"rpm": 1}),
            ("POST", "keys/", {"name": "x"}),
            ("DELETE", f"keys/{theirs_key.id}/", None),
            ("POST", f"keys/{theirs_key.id}/rotate/", {}),
            ("POST", "members/", {"email": "ada@example.com", "role": "owner"}),
        ):
            response = api.call(method, f"tenants/theirs/{path}", body, **{"If-Match": '"1"'})
            assert response.status_code == 404
        # The own tenant's path does not reach a stranger's key either.
        assert api.delete(f"tenants/mine/keys/{theirs_key.id}/").status_code == 404
        assert api.get("usage/?tenant=theirs").status_code == 404


@pytest.mark.parametrize(
    ("role", "allowed"),
    [
        ("viewer", set()),
        ("developer", {"keys"}),
        ("admin", {"keys", "audit", "project", "name", "members", "management-keys"}),
        ("owner", {"keys", "audit", "project", "name", "members", "management-keys", "owner", "owner-key"}),
        (
            "operator",
            {"keys", "audit", "project", "name", "members", "management-keys", "owner", "owner-key"}
            | {"status", "policy", "workers", "fleet-audit", "users", "create"},
        ),
    ],
)
def test_each_role_does_what_it_may(
    tenant: TenantView,
    make_user: Callable[..., User],
    signed_in: Callable[[User], Any],
    role: str,
    allowed: set[str],
) -> None:
    """Everybody reads; who may not write gets a 403 that says so, and nothing happens."""
    user = make_user("me@example.com", is_staff=role == "operator")
    if role != "operator":
        set_member(
            tenant_id=tenant.id, email=user.email, role=role, by_role="operator", actor=Actor("system", "t", "t")
        )
    make_user("other@example.com")
    api = signed_in(user)
    for path in READS:
        assert api.get(f"tenants/acme/{path}").status_code == 200
    version = api.get("tenants/acme/policy/").json()["version"]
    match = {"If-Match": f'"{version}"'}
    actions: dict[str, Any] = {
        "keys": lambda: api.post("tenants/acme/keys/", {"name": "k"}),
        "audit": lambda: api.get("tenants/acme/audit/"),
        "project": lambda: api.post("tenants/acme/projects/", {"name": "p"}),
        "name": lambda: api.patch("tenants/acme/", {"name": "n"}),
        "members": lambda: api.post("tenants/acme/members/", {"email": "other@example.com", "role": "viewer"}),
        "management-keys": lambda: api.post("tenants/acme/management-keys/", {"name": "k"}),
        "owner-key": lambda: api.post("tenants/acme/management-keys/", {"name": "k", "role": "owner"}),
        "owner": lambda: api.post("tenants/acme/members/", {"email": "other@example.com", "role": "owner"}),
        "policy": lambda: api.patch("tenants/acme/policy/", {"rpm": 1}, **match),
        "status": lambda: api.patch("tenants/acme/", {"status": "suspended"}),
        "workers": lambda: api.get("workers/"),
        "fleet-audit": lambda: api.get("audit/"),
        "users": lambda: api.get("users/"),
        "create": lambda: api.post("tenants/", {"slug": "new", "name": "New"}),
    }
    statuses = {name: act().status_code for name, act in actions.items()}
    assert {name for name, status in statuses.items() if status < 300} == allowed
    assert {status for name, status in statuses.items() if name not in allowed} <= {403}


def test_a_key_never_outranks_the_person_who_made_it(
    tenant: TenantView,
    make_user: Callable[..., User],
    signed_in: Callable[[User], Any],
    with_key: Callable[[str], Any],
    actor: Actor,
) -> None:
    """Demoted, removed or locked out, the maker takes the key's rights along."""
    make_user("first@example.com", tenant, "owner")
    user = make_user("ada@example.com", tenant, "owner")
    body = {"name": "k", "role": "owner"}
    raw = signed_in(user).post("tenants/acme/management-keys/", body).json()["secret"]
    assert raw.startswith("tg_adm_")
    api = with_key(raw)
    make_owner = {"email": "first@example.com", "role": "owner"}
    assert api.post("tenants/acme/members/", make_owner).status_code == 200

    def demote(role: str) -> None:
        set_member(tenant_id=tenant.id, email=user.email, role=role, by_role="operator", actor=actor)

    demote("admin")
    assert api.patch("tenants/acme/", {"name": "n"}).status_code == 200
    assert api.post("tenants/acme/members/", {"email": user.email, "role": "owner"}).status_code == 403
    demote("developer")
    assert api.get("tenants/acme/").status_code == 401
    demote("admin")
    assert api.get("tenants/acme/").status_code == 200
    remove_member(tenant_id=tenant.id, user_id=user.pk, by_role="operator", actor=actor)
    assert api.get("tenants/acme/").status_code == 401


def test_an_operators_key_ends_with_the_operator(
    db: None, make_user: Callable[..., User], signed_in: Callable[[User], Any], with_key: Callable[[str], Any]
) -> None:
    """No longer staff, or locked out: the key is out."""
    user = make_user("boss@example.com", is_staff=True)
    raw = signed_in(user).post("management-keys/", {"name": "k"}).json()["secret"]
    api = with_key(raw)
    assert api.get("users/").status_code == 200
    for field in ("is_staff", "is_active"):
        User.objects.filter(pk=user.pk).update(**{field: False})
        assert api.get("users/").status_code == 401
        User.objects.filter(pk=user.pk).update(**{field: True})
    assert api.get("users/").status_code == 200


def test_a_key_makes_no_key_of_its_rank(
    tenant: TenantView, operator: Any, with_key: Callable[[str], Any], actor: Actor
) -> None:
    """A stolen key cannot outlive its revocation; an operator's key may equip tenants; a key may rotate itself."""
    raw = create_management_key(name="k", role="owner", actor=actor, tenant_id=tenant.id).secret
    adm = with_key(raw)
    assert adm.post("tenants/acme/management-keys/", {"name": "k"}).status_code == 403
    assert operator.post("management-keys/", {"name": "k"}).status_code == 403
    made = operator.post("tenants/acme/management-keys/", {"name": "k"})
    assert made.status_code == 201
    assert adm.post(f"tenants/acme/management-keys/{made.json()['id']}/rotate/", {}).status_code == 403
    own = raw.split("_")[2]
    rotated = adm.post(f"tenants/acme/management-keys/{own}/rotate/", {})
    assert rotated.status_code == 201
    assert with_key(rotated.json()["secret"]).get("tenants/acme/").status_code == 200


def test_a_key_that_reads_does_not_write(tenant: TenantView, with_key: Callable[[str], Any], actor: Actor) -> None:
    """The scope is checked before anything else."""
    options = KeyOptions(scopes=("read",))
    api = with_key(create_management_key(name="k", role="operator", actor=actor, options=options).secret)
    assert api.get("tenants/acme/policy/").status_code == 200
    for response in (
        api.patch("tenants/acme/policy/", {"rpm": 1}, **{"If-Match": '"1"'}),
        api.post("tenants/", {"slug": "x", "name": "x"}),
        api.delete("tenants/acme/keys/x/"),
    ):
        assert response.status_code == 403
        assert "write" in response.json()["error"]["message"]


def test_a_session_writes_with_a_csrf_token_alone(tenant: TenantView, make_user: Callable[..., User]) -> None:
    """Another site's form cannot write in an operator's name."""
    client = Client(enforce_csrf_checks=True)
    client.force_login(make_user("boss@example.com", is_staff=True))
    token = "a" * 32
    client.cookies["csrftoken"] = token

    def create(**headers: str) -> int:
        body = {"slug": "new", "name": "New"}
        return client.post("/api/v1/tenants/", body, content_type="application/json", headers=headers).status_code

    assert client.get("/api/v1/tenants/").status_code == 200
    assert create() == 403
    assert create(**{"X-CSRFToken": "b" * 32}) == 403
    assert create(**{"X-CSRFToken": token}) == 201


def test_a_locked_out_users_session_is_out(
    tenant: TenantView, make_user: Callable[..., User], signed_in: Callable[[User], Any]
) -> None:
    """`is_active` ends sessions too."""
    user = make_user("ada@example.com", tenant, "owner")
    api = signed_in(user)
    assert api.get("tenants/acme/").status_code == 200
    User.objects.filter(pk=user.pk).update(is_active=False)
    assert api.get("tenants/acme/").status_code == 401
