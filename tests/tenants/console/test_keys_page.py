"""The keys page: a secret shown once, revoking, and whose keys they are."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from django.test import Client

from tenants import selectors
from tenants.contracts import TenantView, WorkerView
from tenants.keys import parse_key
from tenants.models import AuditEvent, User
from tenants.services.keys import create_api_key, digest
from tests.tenants.conftest import ACTOR

NEW = "/t/acme/keys/new/"


@pytest.fixture
def developer(tenant: TenantView, make_user: Callable[..., User]) -> Client:
    """Return the client of a developer of acme."""
    client = Client()
    client.force_login(make_user("dev@example.com", tenant, "developer"))
    return client


def only_key_id(tenant: TenantView) -> str:
    """Return the id of the tenant's one key."""
    (key,) = selectors.api_keys(tenant.id)
    return key.id


def test_secret_is_shown_once(developer: Client, tenant: TenantView) -> None:
    """A created key works, its secret is in that one answer, not cached, and on no page after it."""
    answer = developer.post(NEW, {"name": "nightly", "lifetime": ""})
    secret = re.search(r"tg_live_\w+", answer.content.decode())
    assert secret is not None
    assert parse_key(secret[0]) is not None
    assert "no-store" in answer.headers["Cache-Control"]
    grant = selectors.grant_for_digest(digest(secret[0]))
    assert grant is not None
    assert grant.tenant_id == tenant.id
    listed = developer.get("/t/acme/keys/").content.decode()
    assert "nightly" in listed
    assert secret[0] not in listed


def test_key_is_made_in_the_persons_name(developer: Client, tenant: TenantView) -> None:
    """The audit trail says who made it."""
    developer.post(NEW, {"name": "nightly"})
    event = AuditEvent.objects.for_tenant(tenant.id).filter(action="api_key.created").get()
    assert event.actor_label == "dev@example.com"


def test_expiry_and_models(developer: Client, tenant: TenantView, make_worker: Callable[..., WorkerView]) -> None:
    """A date means the whole of that day, UTC; ticked models are the only ones."""
    model = make_worker().model
    day = (datetime.now(UTC) + timedelta(days=10)).date()
    developer.post(NEW, {"name": "n", "lifetime": "date", "expires_on": day.isoformat(), "models": [model]})
    (key,) = selectors.api_keys(tenant.id)
    assert key.expires_at == datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(days=1)
    assert key.models == (model,)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"name": ""}, "Give the key a name"),
        ({"name": "x" * 81}, "at most 80"),
        ({"name": "a\x07b"}, "control characters"),
        ({"name": "n", "lifetime": "date"}, "Choose the last day"),
        ({"name": "n", "lifetime": "date", "expires_on": "2020-01-01"}, "future"),
        ({"name": "n", "lifetime": "date", "expires_on": "9999-12-31"}, "before the year 3000"),
        ({"name": "n", "lifetime": "3000000"}, "valid choice"),
        ({"name": "n", "models": "somebody-elses"}, "valid choice"),
    ],
)
def test_bad_fields(developer: Client, tenant: TenantView, fields: dict[str, str], words: str) -> None:
    """A bad field is told at the field, and no key is made."""
    answer = developer.post(NEW, fields)
    assert answer.status_code == 422
    assert words in answer.content.decode()
    assert selectors.api_keys(tenant.id) == []


def test_names_are_text(developer: Client) -> None:
    """A name that looks like markup is shown as the text that it is."""
    page = developer.post(NEW, {"name": "<b onclick=x>"}).content.decode()
    assert "<b onclick" not in page
    assert "&lt;b onclick" in page


def test_revoking_asks_once_and_names_the_key(developer: Client, tenant: TenantView) -> None:
    """The row turns into a question with the key's name; the answer revokes, and the row says so."""
    created = create_api_key(tenant_id=tenant.id, name="nightly", actor=ACTOR)
    path = f"/t/acme/keys/{only_key_id(tenant)}/"
    assert "Revoke “nightly”?" in developer.get(f"{path}?revoke").content.decode()
    assert selectors.grant_for_digest(digest(created.secret)) is not None
    assert "revoked" in developer.post(f"{path}revoke/").content.decode()
    assert selectors.grant_for_digest(digest(created.secret)) is None


def test_viewer_changes_nothing(tenant: TenantView, make_user: Callable[..., User]) -> None:
    """A viewer sees the keys, is offered no change, and is refused one."""
    create_api_key(tenant_id=tenant.id, name="nightly", actor=ACTOR)
    viewer = Client()
    viewer.force_login(make_user("v@example.com", tenant, "viewer"))
    key = f"/t/acme/keys/{only_key_id(tenant)}/"
    assert "Revoke" not in viewer.get("/t/acme/keys/").content.decode()
    assert "Revoke" not in viewer.get(f"{key}?revoke").content.decode()
    assert viewer.post(f"{key}revoke/").status_code == 403
    assert viewer.post(NEW, {"name": "n"}).status_code == 403
    assert selectors.api_keys(tenant.id)[0].status == "active"


def test_keys_of_another_tenant(developer: Client, make_tenant: Callable[..., TenantView]) -> None:
    """A key's id of another tenant is a 404 under this tenant's address."""
    other = make_tenant("other")
    key = create_api_key(tenant_id=other.id, name="theirs", actor=ACTOR).key
    assert developer.get(f"/t/acme/keys/{key.id}/").status_code == 404
    assert developer.post(f"/t/acme/keys/{key.id}/revoke/").status_code == 404
    assert selectors.api_keys(other.id)[0].status == "active"
