"""The boost on a policy's page."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from tenants import selectors
from tenants.contracts import PolicyView, TenantView
from tenants.models import User
from tenants.services.boosts import end_boost, start_boost
from tenants.services.policy import set_policy
from tests.gateway.console.conftest import ACTOR

PAGE = "/operator/tenants/acme/policy/boost/"
NEW = f"{PAGE}new/"
FIELDS = {"max_running": "64", "lasts": "900", "reason": "A launch"}


@pytest.fixture
def console(operator: User, tenant: TenantView, signed_in: Callable[[User], Client]) -> Client:
    """Return the operator's client."""
    return signed_in(operator)


def current(tenant: TenantView) -> PolicyView:
    """Return the policy in force."""
    policy = selectors.policy(tenant.id)
    assert policy is not None
    return policy


def test_boost_is_started_and_ended(console: Client, tenant: TenantView, operator: User) -> None:
    """The form starts it, the panel says what goes back and until when, one click ends it."""
    assert "now 32" in console.get(NEW).content.decode()
    answer = console.post(NEW, FIELDS | {"kv_hard_bytes": "512", "kv_hard_bytes_unit": "MiB"})
    page = answer.content.decode()
    boost = selectors.boost(tenant.id)
    assert boost is not None
    assert (boost.changes, boost.reason) == ({"kv_hard_bytes": 512 << 20, "max_running": 64}, "A launch")
    assert timedelta(minutes=14) < boost.ends_at - timezone.now() <= timedelta(minutes=15)
    assert "goes back to 256 MiB at the end" in " ".join(page.split())
    assert f'data-ends="{boost.ends_at.isoformat()}"' in page
    assert "limits:saved" in answer.headers["HX-Trigger"]
    ended = console.post(f"{PAGE}{boost.id}/end/")
    assert "The boost has ended" in ended.content.decode()
    assert (current(tenant).max_running, selectors.boost(tenant.id)) == (32, None)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"reason": ""}, "Say why"),
        ({"max_running": ""}, "Change at least one limit"),
        ({"max_running": "32"}, "Change at least one limit"),
        ({"max_running": "0"}, "greater than or equal to 1"),
        ({"kv_hard_bytes": "512"}, "Choose a unit"),
        ({"kv_hard_bytes": "512", "kv_hard_bytes_unit": "parsec"}, "Select a valid choice"),
        ({"lasts": "", "amount": ""}, "how long the boost lasts"),
        ({"lasts": "", "amount": "40000", "unit": "days"}, "30 days"),
        ({"lasts": "77"}, ""),
        ({"kv_hard_bytes": "lots", "kv_hard_bytes_unit": "MiB"}, "Write a number"),
        ({"kv_soft_bytes": "300", "kv_soft_bytes_unit": "MiB"}, "must not be above"),
        ({"weight": "nan"}, "Enter a number"),
        ({"priority": "royal"}, "Select a valid choice"),
    ],
)
def test_bad_boost_starts_nothing(fields: dict[str, str], words: str, console: Client, tenant: TenantView) -> None:
    """A bad value is a 422 that says what to write; what was written is kept in the form."""
    before = current(tenant)
    answer = console.post(NEW, FIELDS | fields)
    assert answer.status_code == 422
    assert words in answer.content.decode()
    assert (current(tenant), selectors.boost(tenant.id)) == (before, None)


def test_second_boost_is_refused(console: Client, tenant: TenantView) -> None:
    """One is in force a tenant: another says which."""
    assert console.post(NEW, FIELDS).status_code == 200
    answer = console.post(NEW, FIELDS | {"max_running": "99"})
    assert answer.status_code == 409
    assert "in force until" in answer.content.decode()
    assert current(tenant).max_running == 64


def test_custom_length(console: Client, tenant: TenantView) -> None:
    """A length of one's own counts in its unit."""
    assert console.post(NEW, FIELDS | {"lasts": "", "amount": "2", "unit": "days"}).status_code == 200
    boost = selectors.boost(tenant.id)
    assert boost is not None
    assert timedelta(hours=47) < boost.ends_at - timezone.now() <= timedelta(days=2)


def test_guarantee_that_does_not_fit_offers_overcommit(console: Client, tenant: TenantView, worker: str) -> None:
    """A boost that guarantees more than fits is refused with the flag that allows it."""
    big = {
        "kv_soft_bytes": "2",
        "kv_soft_bytes_unit": "GiB",
        "kv_hard_bytes": "2",
        "kv_hard_bytes_unit": "GiB",
    }
    refused = console.post(NEW, FIELDS | big)
    assert refused.status_code == 422
    assert 'name="overcommit"' in refused.content.decode()
    assert console.post(NEW, FIELDS | big | {"overcommit": "on"}).status_code == 200
    assert current(tenant).kv_soft_bytes == 2 << 30


def test_what_somebody_changed_meanwhile_stays(console: Client, tenant: TenantView) -> None:
    """The panel says which of the boost's limits will not go back."""
    console.post(NEW, FIELDS)
    set_policy(tenant_id=tenant.id, expected_version=current(tenant).version, changes={"max_running": 5}, actor=ACTOR)
    page = " ".join(console.get(PAGE).content.decode().split())
    assert "changed since the boost set it to 64: stays so at its end" in page


def test_a_boost_that_has_ended_already(console: Client, tenant: TenantView) -> None:
    """Whoever ends what has just ended by itself sees that it has."""
    boost = start_boost(
        tenant_id=tenant.id,
        expected_version=current(tenant).version,
        changes={"max_running": 64},
        ends_at=timezone.now() + timedelta(hours=1),
        reason="A launch",
        actor=ACTOR,
    )
    end_boost(tenant_id=tenant.id, boost_id=boost.id, actor=ACTOR)
    answer = console.post(f"{PAGE}{boost.id}/end/")
    assert answer.status_code == 200
    assert "The boost has ended" in answer.content.decode()


def test_unknown_boost(console: Client) -> None:
    """An id that names no boost of this tenant is a 404."""
    assert console.post(f"{PAGE}00000000-0000-0000-0000-000000000000/end/").status_code == 404
