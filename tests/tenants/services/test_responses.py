"""Stored responses: who finds them, how long a writer may go on, and how they go."""

import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.utils import timezone

from tenants import responses, tasks
from tenants.contracts import RESPONSES_CHANNEL, ResponseOwner, ResponseRecord, ResponseStatusName, TenantView
from tenants.errors import Conflict, NoTenantScope, NotFound
from tenants.models import StoredResponse
from tenants.services import responses as services

TEXT = b'{"text": "The harbour closes at nine."}'


@pytest.fixture
def owner(tenant: TenantView) -> ResponseOwner:
    """Return a project of a tenant."""
    return ResponseOwner(tenant.id, str(uuid.uuid4()))


def record(status: ResponseStatusName = "completed", *, document: bytes = TEXT, **more: Any) -> ResponseRecord:
    """Return a new response; what runs does so in the background."""
    fields: dict[str, Any] = {"id": f"resp_{uuid.uuid4().hex}", "created_at": time.time()} | more
    background = fields.pop("background", status in ("queued", "in_progress"))
    return ResponseRecord(status=status, background=background, document=document, **fields)


def kept(owner: ResponseOwner, status: ResponseStatusName = "completed", **more: Any) -> ResponseRecord:
    """Store a new response."""
    response = record(status, **more)
    services.keep(owner=owner, response=response)
    return response


def later(response: ResponseRecord, status: ResponseStatusName, document: bytes = b"{}") -> ResponseRecord:
    """Return a response as its writer has it later."""
    return ResponseRecord(
        id=response.id, status=status, background=True, created_at=response.created_at, document=document
    )


def lose(response: ResponseRecord) -> None:
    """Let the writer of a response have been silent for longer than its lease."""
    past = timezone.now() - timedelta(seconds=1)
    StoredResponse.objects.across_tenants().filter(pk=response.id).update(lease_until=past)


def now(owner: ResponseOwner, response: ResponseRecord) -> ResponseRecord:
    """Return a response as it is stored."""
    found = responses.response(owner, response.id)
    assert found is not None
    return found


def test_a_response_comes_back_to_its_owner(owner: ResponseOwner) -> None:
    """As it was stored, by itself and among others."""
    response = kept(owner)
    found = now(owner, response)
    assert (found.id, found.status, found.background, found.document) == (response.id, "completed", False, TEXT)
    assert found.created_at == pytest.approx(response.created_at, abs=1e-3)
    assert [one.id for one in responses.responses(owner, [response.id, "resp_x"])] == [response.id]


def test_nobody_else_finds_it(owner: ResponseOwner, make_tenant: Callable[..., TenantView]) -> None:
    """Another project of the tenant does not, nor another tenant that names the project; no tenant is an error."""
    response = kept(owner, "in_progress")
    for stranger in (
        ResponseOwner(owner.tenant_id, str(uuid.uuid4())),
        ResponseOwner(make_tenant("other").id, owner.project_id),
    ):
        assert responses.response(stranger, response.id) is None
        assert responses.responses(stranger, [response.id]) == []
        assert not services.go_on(owner=stranger, response=later(response, "completed"))
        for change in (services.cancel, services.delete):
            with pytest.raises(NotFound):
                change(owner=stranger, response_id=response.id)
    assert now(owner, response).status == "in_progress"
    with pytest.raises(NoTenantScope):
        responses.response(ResponseOwner("", owner.project_id), response.id)


def test_no_text_lies_open(owner: ResponseOwner) -> None:
    """What the table holds shows nothing; under another pepper, it is as if it weren't there."""
    response = kept(owner)
    with connection.cursor() as cursor:
        cursor.execute("SELECT r::text, encode(sealed, 'escape') FROM tenants_storedresponse AS r")
        assert "harbour" not in str(cursor.fetchall())
    assert "harbour" not in repr(now(owner, response))


def test_another_pepper_voids_it(owner: ResponseOwner, settings: Any) -> None:
    """It is not found any more, and can be deleted."""
    response = kept(owner)
    settings.KEY_PEPPER = "another"
    assert responses.response(owner, response.id) is None
    services.delete(owner=owner, response_id=response.id)
    assert not StoredResponse.objects.across_tenants().exists()


def test_a_writer_goes_on_to_the_end(owner: ResponseOwner) -> None:
    """Each time all of it is replaced; after the end nothing is."""
    response = kept(owner, "queued")
    assert services.go_on(owner=owner, response=later(response, "in_progress", b"1"))
    assert (now(owner, response).status, now(owner, response).document) == ("in_progress", b"1")
    assert services.go_on(owner=owner, response=later(response, "completed", b"2"))
    assert not services.go_on(owner=owner, response=later(response, "completed", b"3"))
    assert (now(owner, response).status, now(owner, response).document) == ("completed", b"2")


def test_a_writer_that_was_silent_has_failed(owner: ResponseOwner) -> None:
    """Whoever reads it sees that at once, and a writer that comes back changes nothing any more."""
    response = kept(owner, "in_progress")
    lose(response)
    assert (now(owner, response).status, now(owner, response).document) == ("failed", TEXT)
    assert not services.go_on(owner=owner, response=later(response, "completed"))
    assert services.cancel(owner=owner, response_id=response.id).status == "failed"
    tasks.sweep_responses()
    assert StoredResponse.objects.across_tenants().get().status == "failed"


def test_cancelled_is_cancelled(owner: ResponseOwner) -> None:
    """The writer may not go on; a second time changes nothing, nor does it after another end."""
    response = kept(owner, "in_progress")
    assert services.cancel(owner=owner, response_id=response.id).status == "cancelled"
    assert not services.go_on(owner=owner, response=later(response, "completed"))
    assert services.cancel(owner=owner, response_id=response.id).status == "cancelled"
    assert now(owner, response).document == TEXT
    ended = kept(owner, "incomplete", background=True)
    assert services.cancel(owner=owner, response_id=ended.id).status == "incomplete"


def test_what_does_not_run_in_the_background_cannot_be_cancelled(owner: ResponseOwner) -> None:
    """Its connection is what it hangs on."""
    with pytest.raises(Conflict):
        services.cancel(owner=owner, response_id=kept(owner).id)


def test_deleted_is_gone(owner: ResponseOwner) -> None:
    """For its writer too."""
    response = kept(owner, "in_progress")
    services.delete(owner=owner, response_id=response.id)
    assert responses.response(owner, response.id) is None
    assert not services.go_on(owner=owner, response=later(response, "completed"))
    with pytest.raises(NotFound):
        services.delete(owner=owner, response_id=response.id)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("change", [services.cancel, services.delete])
def test_the_writer_is_told(change: Callable[..., Any], make_tenant: Callable[..., TenantView]) -> None:
    """Cancelling and deleting notify every web process, where it still runs."""
    owner = ResponseOwner(make_tenant().id, str(uuid.uuid4()))
    running, ended = kept(owner, "in_progress"), kept(owner, background=True)
    connection.ensure_connection()
    listener = connection.connection
    listener.execute(f"LISTEN {RESPONSES_CHANNEL}")
    try:
        for response in (ended, running):
            change(owner=owner, response_id=response.id)
        told = [notification.payload for notification in listener.notifies(timeout=20, stop_after=1)]
    finally:
        listener.execute("UNLISTEN *")
    assert told == [running.id]


def test_an_end_and_a_cancellation_cannot_pass_each_other(
    make_tenant: Callable[..., TenantView], in_threads: Callable[..., list[Any]], transactional_db: None
) -> None:
    """Of the two one comes first, and the other sees it."""
    owner = ResponseOwner(make_tenant().id, str(uuid.uuid4()))
    for _ in range(5):
        response = kept(owner, "in_progress")
        went_on, cancelled = in_threads(
            lambda one=response: services.go_on(owner=owner, response=later(one, "completed")),
            lambda one=response: services.cancel(owner=owner, response_id=one.id),
        )
        assert now(owner, response).status == cancelled.status == ("completed" if went_on else "cancelled")


def test_what_is_old_goes(owner: ResponseOwner) -> None:
    """It is not found after its time, swept or not."""
    old = time.time() - (responses.KEPT_DAYS * 86400 + 60)
    response, young = kept(owner, created_at=old), kept(owner, created_at=old + 3600)
    assert responses.response(owner, response.id) is None
    assert tasks.sweep_responses() == 1
    assert StoredResponse.objects.across_tenants().get().pk == young.id


@pytest.mark.parametrize(("name", "most"), [("MOST_STORED", 2), ("MOST_BYTES", 250)])
def test_above_what_a_tenant_may_keep_the_oldest_go(
    name: str, most: int, owner: ResponseOwner, make_tenant: Callable[..., TenantView], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another tenant's are not counted, and stay."""
    began = time.time() - 100
    ids = [kept(owner, created_at=began + n, document=b"x" * 10).id for n in range(4)]
    other = kept(ResponseOwner(make_tenant("other").id, owner.project_id), created_at=began)
    [size] = set(StoredResponse.objects.across_tenants().values_list("num_bytes", flat=True)) - {
        StoredResponse.objects.across_tenants().get(pk=other.id).num_bytes
    }
    monkeypatch.setattr(services, name, most if name == "MOST_STORED" else 2 * size)
    assert tasks.sweep_responses() == 2
    assert set(StoredResponse.objects.across_tenants().values_list("pk", flat=True)) == {*ids[2:], other.id}


@pytest.mark.parametrize(
    "values",
    [
        {"status": "lost"},
        {"status": "in_progress"},
        {"lease_until": timezone.now()},
        {"status": "queued", "lease_until": timezone.now(), "background": False},
    ],
    ids=["unknown", "without a lease", "a lease after the end", "not in the background"],
)
def test_a_row_that_makes_no_sense_cannot_be_stored(values: dict[str, Any], owner: ResponseOwner) -> None:
    """What runs has a lease, and what has ended has none."""
    response = kept(owner)
    with pytest.raises(IntegrityError, match="response_"), transaction.atomic():
        StoredResponse.objects.across_tenants().filter(pk=response.id).update(**values)
