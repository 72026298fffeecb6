"""The fleet over HTTP: who is there, and draining one of it."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from tenants import selectors
from tenants.contracts import Actor, TenantView, WorkerView
from tenants.models import AuditEvent, Worker
from tenants.services.keys import KeyOptions, create_management_key


def test_workers_by_id(make_worker: Callable[..., WorkerView], operator: Any) -> None:
    """With what was announced and whether they are live, a page at a time."""
    make_worker("one")
    make_worker("two")
    Worker.objects.filter(pk="two").update(last_seen_at=timezone.now() - timedelta(minutes=1))
    first = operator.get("workers/?limit=1").json()
    second = operator.get(f"workers/?limit=1&cursor={first['next_cursor']}").json()
    rows = first["data"] + second["data"]
    assert [(row["id"], row["live"], row["draining"]) for row in rows] == [("one", True, False), ("two", False, False)]
    assert rows[0]["kv_bytes"] == 1 << 30


def test_a_worker_drains_until_it_is_told_otherwise(make_worker: Callable[..., WorkerView], operator: Any) -> None:
    """The answer and the list say so; a heartbeat does not undo it; each change is in the audit trail, once."""
    make_worker("one")
    make_worker("two")
    answer = operator.post("workers/one/drain/", {"draining": True})
    assert (answer.status_code, answer.json()["id"], answer.json()["draining"]) == (200, "one", True)
    assert operator.post("workers/one/drain/", {"draining": True}).json()["draining"] is True
    make_worker("one", address="unix:/run/after-a-restart.sock")
    assert {worker.worker_id: worker.draining for worker in selectors.live_workers()} == {"one": True, "two": False}
    assert operator.post("workers/one/drain/", {"draining": False}).json()["draining"] is False
    events = AuditEvent.objects.across_tenants().filter(action__startswith="worker.drain").order_by("id")
    assert [(row.action, row.target_id, row.before, row.after) for row in events] == [
        ("worker.drain_started", "one", {"draining": False}, {"draining": True}),
        ("worker.drain_ended", "one", {"draining": True}, {"draining": False}),
    ]
    assert events[0].actor_kind == "key"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "draining"),
        ({"draining": None}, "draining"),
        ({"draining": "perhaps"}, "draining"),
        ({"draining": True, "why": "x"}, "why"),
        ([], None),
    ],
    ids=str,
)
def test_a_wrong_body_is_400_by_name(
    make_worker: Callable[..., WorkerView], operator: Any, body: Any, param: Any
) -> None:
    """And nothing drains."""
    make_worker("one")
    refused = operator.post("workers/one/drain/", body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
    assert not Worker.objects.get(pk="one").draining


def test_an_unknown_worker_is_404(operator: Any, db: None) -> None:
    """Whatever its name is like."""
    for name in ("nobody", "a/b", "%20", "x" * 300):
        assert operator.post(f"workers/{name}/drain/", {"draining": True}).status_code == 404


def test_draining_is_for_operators(
    make_worker: Callable[..., WorkerView], tenant: TenantView, with_key: Callable[[str], Any], actor: Actor
) -> None:
    """A tenant's owner is refused, and so is an operator's key that only reads."""
    make_worker("one")
    owner = create_management_key(name="k", role="owner", actor=actor, tenant_id=tenant.id).secret
    reader = create_management_key(name="r", role="operator", actor=actor, options=KeyOptions(scopes=("read",))).secret
    for raw in (owner, reader):
        assert with_key(raw).post("workers/one/drain/", {"draining": True}).status_code == 403
    assert not Worker.objects.get(pk="one").draining
