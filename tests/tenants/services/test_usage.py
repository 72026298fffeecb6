"""Inserting usage records."""

import math
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from django.db import IntegrityError, transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tenants.contracts import TenantView, UsageEntry
from tenants.models import UsageRecord
from tenants.services.usage import NOBODY, record_usage

ENTRY = UsageEntry(
    request_id="req-1",
    tenant_id="00000000-0000-0000-0000-00000000000a",
    project_id="00000000-0000-0000-0000-00000000000b",
    key_id="k",
    session="s",
    model="tiny",
    worker_id="worker-0",
    prompt_tokens=10,
    cached_tokens=4,
    completion_tokens=20,
    kv_device_byte_seconds=1.5,
    queue_seconds=0.1,
    ttft_seconds=0.2,
    started_at=1_900_000_000.0,
    finished_at=1_900_000_001.5,
    finish_reason="stop",
    num_preemptions=1,
)


def entry(**changes: Any) -> UsageEntry:
    """Return a usage entry that differs from the usual one."""
    return msgspec.structs.replace(ENTRY, **changes)


def test_a_record_is_stored_as_metered(db: None) -> None:
    """Every field arrives."""
    assert record_usage([ENTRY]) == 1
    row = UsageRecord.objects.for_tenant(ENTRY.tenant_id).get()
    for field in ("request_id", "key_id", "session", "model", "prompt_tokens", "cached_tokens", "completion_tokens"):
        assert getattr(row, field) == getattr(ENTRY, field)
    assert (row.kv_device_byte_seconds, row.queue_seconds, row.ttft_seconds) == (1.5, 0.1, 0.2)
    assert (row.started_at.timestamp(), row.finished_at.timestamp()) == (ENTRY.started_at, ENTRY.finished_at)
    assert (row.finish_reason, row.num_preemptions, str(row.project_id)) == ("stop", 1, ENTRY.project_id)


def test_a_record_is_stored_once(db: None) -> None:
    """Delivered again, alone or among new ones or twice in one batch, it counts once and stays as it was first."""
    assert record_usage([ENTRY, ENTRY]) == 1
    assert record_usage([entry(completion_tokens=999)]) == 0
    assert record_usage([entry(request_id="req-0"), ENTRY, entry(request_id="req-2")]) == 2
    assert UsageRecord.objects.across_tenants().count() == 3
    assert UsageRecord.objects.across_tenants().get(pk="req-1").completion_tokens == 20
    assert record_usage([]) == 0


def test_a_large_batch_is_stored_whole(db: None) -> None:
    """More records than one statement takes."""
    assert record_usage([entry(request_id=f"req-{n}") for n in range(1201)]) == 1201


def test_a_stored_record_cannot_be_rewritten(db: None) -> None:
    """The ledger is insert-only, by trigger."""
    record_usage([ENTRY])
    with pytest.raises(IntegrityError, match="not allowed"), transaction.atomic():
        UsageRecord.objects.across_tenants().update(completion_tokens=0)


def test_a_record_of_nobody_is_kept(db: None) -> None:
    """A tenant id that is none does not stop the journal: the reading is kept under the nil id."""
    assert record_usage([entry(tenant_id="nonsense", project_id="")]) == 1
    row = UsageRecord.objects.across_tenants().get()
    assert (row.tenant_id, row.project_id) == (NOBODY, None)


def test_text_that_postgres_cannot_hold_does_not_stop_the_journal(db: None) -> None:
    """A session name is the client's choice: NUL, half surrogates and great length are cut, the rest is stored."""
    sessions = {"nul": "a\0b", "half": "a\ud800", "long": "x" * 10**5, "plain": "ä"}
    assert record_usage([entry(request_id=name, session=text) for name, text in sessions.items()]) == 4
    stored = dict(UsageRecord.objects.across_tenants().values_list("request_id", "session"))
    assert stored == {"nul": "ab", "half": "a?", "long": "x" * 256, "plain": "ä"}


NUMBERS = st.integers(0, 2**64 - 1)
AMOUNTS = st.floats() | st.just(math.inf)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(
    st.builds(
        UsageEntry,
        **dict.fromkeys(
            ["request_id", "tenant_id", "project_id", "key_id", "session", "model", "worker_id", "finish_reason"],
            st.text(max_size=300),
        ),
        **dict.fromkeys(["prompt_tokens", "cached_tokens", "completion_tokens", "num_preemptions"], NUMBERS),
        **dict.fromkeys(
            ["kv_device_byte_seconds", "queue_seconds", "ttft_seconds", "started_at", "finished_at"], AMOUNTS
        ),
    )
)
def test_whatever_a_worker_sends_is_stored(db: None, sent: UsageEntry) -> None:
    """No value of the protocol's types raises: a poisoned record would hold up all that come after it."""
    assert record_usage([sent]) in (0, 1)
    assert record_usage([sent]) == 0


@pytest.mark.django_db(transaction=True)
def test_two_controllers_that_deliver_at_once_store_each_record_once(in_threads: Callable[..., list[Any]]) -> None:
    """Overlapping batches in opposite orders: no deadlock, no double, and the counts add up."""
    batch = [entry(request_id=f"req-{n:04}") for n in range(1000)]

    def deliver(records: list[UsageEntry]) -> Callable[[], int]:
        return lambda: record_usage(records)

    results = in_threads(deliver(batch), deliver(batch[::-1]), deliver(batch[500:] + batch[:500]))
    assert sum(results) == 1000
    assert UsageRecord.objects.across_tenants().count() == 1000


def test_scope_of_the_ledger(tenant: TenantView) -> None:
    """A tenant's records are its own."""
    record_usage([entry(tenant_id=tenant.id), entry(request_id="other")])
    assert UsageRecord.objects.for_tenant(tenant.id).get().request_id == "req-1"
