"""The one shape of errors, whatever goes wrong."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import OperationalError
from django.test import Client
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tenants.api.view import ManagementView
from tenants.contracts import Actor, TenantView
from tenants.services.policy import set_policy
from tenants.services.share_groups import create_share_group

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
FIELDS = ["name", "slug", "email", "role", "password", "policy", "scopes", "models", "expires_at", "rpm", "weight"]
BODIES = (
    JSON
    | st.binary(max_size=40)
    | st.dictionaries(st.sampled_from([*FIELDS, "kv_soft_bytes", "overlap_seconds", "status"]), JSON, max_size=4)
    | st.dictionaries(st.sampled_from(["name", "messages", "text", "description", "share_group"]), JSON, max_size=4)
)
ENDPOINTS = st.sampled_from(
    [
        ("POST", "tenants/"),
        ("PATCH", "tenants/acme/"),
        ("PATCH", "tenants/acme/policy/"),
        ("POST", "tenants/acme/keys/"),
        ("POST", "tenants/acme/keys/unknown/rotate/"),
        ("POST", "tenants/acme/projects/"),
        ("POST", "tenants/acme/members/"),
        ("POST", "tenants/acme/management-keys/"),
        ("POST", "management-keys/"),
        ("POST", "users/"),
        ("PUT", "tenants/acme/"),
        ("POST", "share-groups/"),
        ("PATCH", "share-groups/docs/"),
        ("DELETE", "share-groups/nowhere/"),
        ("POST", "share-groups/docs/prefixes/"),
        ("POST", "tenants/acme/prefixes/"),
    ]
)


@pytest.fixture
def group(tenant: TenantView, actor: Actor) -> str:
    """Return the name of a share group that acme is in."""
    name = create_share_group(name="docs", description="", kv_soft_bytes=0, kv_hard_bytes=1, actor=actor).name
    set_policy(tenant_id=tenant.id, expected_version=1, changes={"share_group": name}, actor=actor)
    return name


def version_of(operator: Any, path: str) -> str:
    """Return the ETag that a change of `path` has to name, if it has to name one."""
    return str(operator.get(path if path == "share-groups/docs/" else "tenants/acme/policy/")["ETag"])


def has_the_shape(response: Any) -> bool:
    """Tell whether an error has its one shape."""
    error = response.json()
    return set(error) == {"error"} and set(error["error"]) == {"message", "type", "param", "code"}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None)
@given(ENDPOINTS, BODIES)
def test_any_body_is_taken_or_refused_with_a_reason(
    tenant: TenantView, group: str, operator: Any, endpoint: tuple[str, str], body: Any
) -> None:
    """No body makes a 5xx: it is valid, or a 4xx in the one shape."""
    method, path = endpoint
    etag = version_of(operator, path)
    response = operator.call(method, path, body, **{"If-Match": etag})
    assert response.status_code < 500
    assert response.status_code < 300 or has_the_shape(response)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(
    st.sampled_from(
        ["usage/", "audit/", "tenants/acme/audit/", "workers/", "share-groups/", "share-groups/docs/prefixes/"]
    ),
    st.dictionaries(
        st.sampled_from(["limit", "cursor", "since", "until", "tenant", "session", "key_id", "action", "format", "x"]),
        st.text(max_size=30),
        max_size=3,
    ),
)
def test_any_query_is_taken_or_refused_with_a_reason(
    tenant: TenantView, group: str, operator: Any, path: str, query: dict[str, str]
) -> None:
    """No query string makes a 5xx."""
    response = operator.client.get(f"/api/v1/{path}", query, headers=operator.headers)
    assert response.status_code < 500
    assert response.status_code < 300 or has_the_shape(response)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"\xff\xfe", 400),
        (b"[" * 100_000, 400),
        (b'{"name": ' + b"9" * 5000 + b"}", 400),
        (b'{"name": NaN}', 400),
        (b'{"name": "\\ud800"}', 400),
        (b'{"name": "\\u0000"}', 400),
        (b'{"\\ud800": "x"}', 400),
        (b'{"name": "' + b"x" * (1100 << 10) + b'"}', 413),
    ],
    ids=["empty", "open", "not utf-8", "deep", "long number", "nan", "half surrogate", "nul", "half a name", "large"],
)
def test_a_malformed_body_is_refused(tenant: TenantView, group: str, operator: Any, body: bytes, status: int) -> None:
    """Each of these has crashed somebody's server."""
    for method, path in (
        ("POST", "tenants/acme/keys/"),
        ("PATCH", "tenants/acme/policy/"),
        ("POST", "share-groups/"),
        ("PATCH", "share-groups/docs/"),
        ("POST", "tenants/acme/prefixes/"),
    ):
        etag = version_of(operator, path)
        refused = operator.call(method, path, body, **{"If-Match": etag})
        assert refused.status_code == status, path
        assert has_the_shape(refused)


def test_only_a_prefix_may_be_large(tenant: TenantView, group: str, operator: Any) -> None:
    """Every other body ends at 256 KiB."""
    body = {"name": "p", "text": "é" * (120 << 10)}
    assert operator.post("tenants/acme/keys/", body).status_code == 413
    assert operator.post("tenants/acme/prefixes/", body).status_code == 201


def test_frameworks_refusals_have_the_shape(tenant: TenantView, operator: Any) -> None:
    """Method, media type, unknown path: the same shape as our own."""
    form = operator.client.post("/api/v1/tenants/", {"slug": "x"}, headers=operator.headers)
    for response, status in (
        (operator.call("PUT", "tenants/acme/"), 405),
        (form, 415),
        (operator.get("nowhere/"), 404),
        (operator.get("tenants"), 404),
        (operator.get("tenants/acme/nothing/"), 404),
        (operator.get("tenants/%00/"), 404),
        (operator.get("tenants/a%20b/"), 404),
    ):
        assert response.status_code == status
        assert has_the_shape(response)


def test_an_unknown_path_is_json_for_every_method() -> None:
    """Also for a write without a CSRF token, which Django would answer with a page."""
    strict = Client(enforce_csrf_checks=True)
    for method in ("GET", "POST", "PATCH", "DELETE", "PUT"):
        response = strict.generic(method, "/api/v1/nowhere/", b"{}", content_type="application/json")
        assert response.status_code == 404
        assert has_the_shape(response)


def test_every_unknown_field_is_named(tenant: TenantView, group: str, operator: Any) -> None:
    """A typing mistake never passes for a setting, on any endpoint that takes a body."""
    key = operator.post("tenants/acme/keys/", {"name": "k"}).json()["id"]
    for method, path in (
        ("POST", "tenants/"),
        ("PATCH", "tenants/acme/"),
        ("PATCH", "tenants/acme/policy/"),
        ("POST", "tenants/acme/keys/"),
        ("POST", f"tenants/acme/keys/{key}/rotate/"),
        ("POST", "tenants/acme/projects/"),
        ("POST", "tenants/acme/members/"),
        ("POST", "tenants/acme/management-keys/"),
        ("POST", "management-keys/"),
        ("POST", "users/"),
        ("POST", "share-groups/"),
        ("PATCH", "share-groups/docs/"),
        ("POST", "share-groups/docs/prefixes/"),
        ("POST", "tenants/acme/prefixes/"),
    ):
        etag = version_of(operator, path)
        refused = operator.call(method, path, {"naem": "x"}, **{"If-Match": etag})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "naem"), path
        assert "naem" in refused.json()["error"]["message"]


@pytest.mark.parametrize(("error", "status"), [(OperationalError("gone"), 503), (ZeroDivisionError("bug"), 500)])
def test_our_own_failures_have_the_shape_and_hide_the_reason(
    db: None, operator: Any, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int
) -> None:
    """A database that is away says when to come back; a mistake of ours shows no internals."""

    def fail(self: ManagementView) -> None:
        raise error

    monkeypatch.setattr(ManagementView, "operators_only", fail)
    response = operator.get("workers/")
    assert response.status_code == status
    assert has_the_shape(response)
    assert response.json()["error"]["type"] == "server_error"
    assert str(error) not in response.json()["error"]["message"]
    assert ("Retry-After" in response) == (status == 503)


def test_errors_of_strangers_say_nothing_of_what_is_there(make_tenant: Callable[..., TenantView]) -> None:
    """Without credentials every path below the API is a 401, a tenant's or none's."""
    make_tenant("acme")
    answers = {Client().get(f"/api/v1/tenants/{slug}/").content for slug in ("acme", "nowhere")}
    assert len(answers) == 1
