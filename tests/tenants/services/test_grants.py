"""What the controller notes of divided limits."""

import uuid
from collections.abc import Callable

from tenants import selectors
from tenants.contracts import TenantView
from tenants.services.grants import record_shares


def test_the_newest_note_of_the_latest_leader_stays(tenant: TenantView, make_tenant: Callable[..., TenantView]) -> None:
    """A leader that has lost its lock without noticing writes over nothing of its successor's."""
    other = make_tenant("other")
    record_shares(term=5, shares={tenant.id: {"w0": (0.5, 0.25), "w1": (0.5, 0.75)}})
    record_shares(term=5, shares={tenant.id: {"w0": (1.0, 1.0)}, other.id: {"w0": (0.0, 1.0)}})
    record_shares(term=4, shares={tenant.id: {"w0": (0.1, 0.1)}})
    assert selectors.grant_shares() == {tenant.id: {"w0": (1.0, 1.0)}, other.id: {"w0": (0.0, 1.0)}}
    record_shares(term=6, shares={tenant.id: {"w9": (0.3, 0.3)}})
    assert selectors.grant_shares()[tenant.id] == {"w9": (0.3, 0.3)}


def test_tenants_that_are_gone_are_left_out(tenant: TenantView) -> None:
    """And nothing at all is nothing."""
    record_shares(term=1, shares={})
    record_shares(term=1, shares={str(uuid.uuid4()): {"w0": (1.0, 1.0)}})
    assert selectors.grant_shares() == {}
