"""API keys over HTTP."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tenants import selectors
from tenants.contracts import TenantView
from tenants.keys import parse_key
from tenants.services.keys import digest


def test_a_key_is_shown_once(tenant: TenantView, operator: Any) -> None:
    """The answer to the creation holds the secret; list and detail do not."""
    made = operator.post("tenants/acme/keys/", {"name": "app"})
    assert made.status_code == 201
    secret = made.json().pop("secret")
    shown = {name: value for name, value in made.json().items() if name != "secret"}
    parsed = parse_key(secret)
    assert parsed is not None
    assert (parsed.kind, parsed.key_id) == ("live", shown["id"])
    assert secret.startswith(shown["prefix"])
    assert operator.get("tenants/acme/keys/").json()["data"] == [shown]
    assert operator.get(f"tenants/acme/keys/{shown['id']}/").json() == shown
    assert secret not in operator.get("tenants/acme/audit/").content.decode()


def test_a_key_takes_its_options(tenant: TenantView, operator: Any) -> None:
    """All of them, and the grant honours them."""
    project = operator.post("tenants/acme/projects/", {"name": "mobile"}).json()["id"]
    expires_at = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    body = {
        "name": "app",
        "project_id": project,
        "scopes": ["generate"],
        "models": ["tiny"],
        "ip_ranges": ["10.1.1.1/8"],
        "expires_at": expires_at,
        "rpm": 3,
        "tpm": 4,
    }
    made = operator.post("tenants/acme/keys/", body)
    assert made.status_code == 201
    grant = selectors.grant_for_digest(digest(made.json()["secret"]))
    assert grant is not None
    assert (grant.project_id, grant.scopes, grant.models) == (project, ("generate",), ("tiny",))
    assert (grant.ip_ranges, grant.rpm, grant.tpm) == (("10.0.0.0/8",), 3, 4)
    assert grant.expires_at == pytest.approx(datetime.fromisoformat(expires_at).timestamp())


@pytest.mark.parametrize(
    ("param", "change"),
    [
        ("name", {"name": ""}),
        ("name", {"name": None}),
        ("name", {"name": "a\u0000b"}),
        ("name", {"name": 7.5}),
        ("nonsense", {"nonsense": 1}),
        ("scopes", {"scopes": []}),
        ("scopes", {"scopes": "generate"}),
        ("scopes.0", {"scopes": ["admin"]}),
        ("models", {"models": ["m"] * 101}),
        ("ip_ranges", {"ip_ranges": ["10.0.0.0/99"]}),
        ("expires_at", {"expires_at": "2001-01-01T00:00:00Z"}),
        ("expires_at", {"expires_at": "2099-01-01T00:00:00"}),
        ("expires_at", {"expires_at": "0001-01-01T00:00:00+14:00"}),
        ("expires_at", {"expires_at": "9999-12-31T23:59:59-14:00"}),
        ("expires_at", {"expires_at": 12}),
        ("project_id", {"project_id": "x"}),
        ("project_id", {"project_id": "00000000-0000-0000-0000-000000000001"}),
        ("rpm", {"rpm": -1}),
        ("rpm", {"rpm": "5"}),
        ("rpm", {"rpm": True}),
        ("tpm", {"tpm": 10**30}),
    ],
    ids=str,
)
def test_a_wrong_field_is_named(tenant: TenantView, operator: Any, param: str, change: dict[str, Any]) -> None:
    """400, the field in `param` and in the message, and no key."""
    refused = operator.post("tenants/acme/keys/", {"name": "app"} | change)
    error = refused.json()["error"]
    assert (refused.status_code, error["param"], error["type"]) == (400, param, "invalid_request_error")
    assert param.split(".")[0] in error["message"]
    assert selectors.api_keys(tenant.id) == []


def test_revoking_is_final_and_repeatable(tenant: TenantView, operator: Any) -> None:
    """204 each time; the key is listed as revoked and grants nothing."""
    made = operator.post("tenants/acme/keys/", {"name": "app"}).json()
    for _ in range(2):
        assert operator.delete(f"tenants/acme/keys/{made['id']}/").status_code == 204
    assert operator.get(f"tenants/acme/keys/{made['id']}/").json()["status"] == "revoked"
    assert selectors.grant_for_digest(digest(made["secret"])) is None
    assert operator.post(f"tenants/acme/keys/{made['id']}/rotate/", {}).status_code == 409
    assert operator.delete("tenants/acme/keys/unknown/").status_code == 404


def test_rotation_overlaps(tenant: TenantView, operator: Any) -> None:
    """Both keys work, and the old one names its successor."""
    old = operator.post("tenants/acme/keys/", {"name": "app", "models": ["tiny"]}).json()
    new = operator.post(f"tenants/acme/keys/{old['id']}/rotate/", {"overlap_seconds": 60})
    assert new.status_code == 201
    assert new.json()["models"] == ["tiny"]
    for secret in (old["secret"], new.json()["secret"]):
        assert selectors.grant_for_digest(digest(secret)) is not None
    assert operator.get(f"tenants/acme/keys/{old['id']}/").json()["replaced_by"] == new.json()["id"]
    wrong = operator.post(f"tenants/acme/keys/{new.json()['id']}/rotate/", {"overlap_seconds": -1})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "overlap_seconds")


def test_management_keys(tenant: TenantView, operator: Any, with_key: Callable[[str], Any]) -> None:
    """A tenant's own key is shown once, works in its tenant, is listed apart from API keys and can be revoked."""
    made = operator.post("tenants/acme/management-keys/", {"name": "terraform", "scopes": ["read"]})
    assert made.status_code == 201
    api = with_key(made.json()["secret"])
    assert [row["slug"] for row in api.get("tenants/").json()["data"]] == ["acme"]
    listed = operator.get("tenants/acme/management-keys/").json()["data"]
    assert [(row["name"], row["role"], row["scopes"]) for row in listed] == [("terraform", "admin", ["read"])]
    assert operator.get("tenants/acme/keys/").json()["data"] == []
    assert operator.get(f"tenants/acme/keys/{made.json()['id']}/").status_code == 404
    assert operator.delete(f"tenants/acme/keys/{made.json()['id']}/").status_code == 404
    assert api.get("tenants/acme/").status_code == 200
    assert operator.delete(f"tenants/acme/management-keys/{made.json()['id']}/").status_code == 204
    assert api.get("tenants/acme/").status_code == 401


def test_an_operators_own_keys(operator: Any) -> None:
    """Listed for operators; one may revoke another, or rotate itself."""
    (own,) = operator.get("management-keys/").json()["data"]
    assert own["role"] == "operator"
    rotated = operator.post(f"management-keys/{own['id']}/rotate/", {"overlap_seconds": 3600})
    assert rotated.status_code == 201
    assert rotated.json()["secret"].startswith("tg_op_")
    assert operator.delete(f"management-keys/{rotated.json()['id']}/").status_code == 204
    assert operator.delete("management-keys/unknown/").status_code == 404
