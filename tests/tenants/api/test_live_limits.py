"""History, reverts, trials and guarantees over HTTP, and whatever else a client may send to a policy."""

from collections.abc import Callable
from typing import Any

import pytest
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tenants import selectors
from tenants.contracts import Actor, TenantView, WorkerView
from tenants.models import AuditEvent, OutboxEvent, PolicyVersion
from tenants.rules.policy import FIELDS, SHADOW_FIELDS
from tenants.services.keys import create_management_key
from tenants.services.workers import mark_applied, mark_settled

PATH = "tenants/acme/policy/"

NUMBERS = st.integers(-5, 5) | st.integers() | st.floats() | st.sampled_from([1 << 60, (1 << 60) + 1, 1 << 63, 10**40])
ANYTHING = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
SHADOW = st.dictionaries(st.sampled_from(SHADOW_FIELDS) | st.text(max_size=3), NUMBERS | ANYTHING, max_size=3)
BODIES = st.dictionaries(
    st.sampled_from(FIELDS) | st.sampled_from(["version", "overcommit", "shadow"]) | st.text(max_size=8),
    NUMBERS | SHADOW | ANYTHING,
    max_size=4,
)
MATCHES = st.none() | st.sampled_from(["current", '"0"', "*", "", '"-1"', '"99999"']) | st.just("current")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=BODIES | ANYTHING, match=MATCHES)
def test_whatever_is_sent_is_taken_whole_or_refused_with_a_reason(
    tenant: TenantView, operator: Any, body: Any, match: str | None
) -> None:
    """A 200 has one new version and one line in trail, outbox and history; a 4xx has a message, and left none."""

    def state() -> tuple[Any, ...]:
        tables = (AuditEvent, OutboxEvent, PolicyVersion)
        counts = tuple(table.objects.for_tenant(tenant.id).count() for table in tables)
        return (operator.get(PATH).json(), selectors.policy_version(), *counts)

    before = state()
    headers = {} if match is None else {"If-Match": f'"{before[0]["version"]}"' if match == "current" else match}
    answer = operator.patch(PATH, body, **headers)
    after = state()
    if answer.status_code == 200:
        assert match == "current"
        assert after[0] == answer.json()
        assert after[1:] == tuple(number + 1 for number in before[1:])
        assert 0 <= after[0]["kv_soft_bytes"] <= after[0]["kv_hard_bytes"]
        return
    error = answer.json()["error"]
    assert answer.status_code in (400, 412, 428)
    assert error["message"]
    assert after == before
    if answer.status_code == 400 and match == "current" and isinstance(body, dict) and error["param"] is not None:
        named = {*body, "kv_soft_bytes", "kv_hard_bytes"}
        assert error["param"] in named or error["param"].partition(".")[0] in named  # of a limit on trial


@pytest.mark.parametrize(
    ("param", "body"),
    [
        ("host_bytes", {"host_bytes": -1}),
        ("disk_bytes", {"disk_bytes": 1 << 61}),
        ("shadow", {"shadow": 5}),
        ("shadow", {"shadow": []}),
        ("shadow.rpm", {"shadow": {"rpm": 0}}),
        ("shadow.kv_hard_bytes", {"shadow": {"kv_hard_bytes": -1}}),
        ("shadow.max_running", {"shadow": {"max_running": "3"}}),
        ("shadow.max_queued", {"shadow": {"max_queued": 1.5}}),
        ("shadow.kv_soft_bytes", {"shadow": {"kv_soft_bytes": 1}}),
        ("shadow.weight", {"shadow": {"weight": None}, "rpm": 5}),
    ],
    ids=str,
)
def test_new_fields_are_checked_like_the_old(tenant: TenantView, operator: Any, param: str, body: Any) -> None:
    """The path of the field is named, and nothing is half applied."""
    before = operator.get(PATH)
    refused = operator.patch(PATH, body, **{"If-Match": before["ETag"]})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
    assert param in refused.json()["error"]["message"]
    assert operator.get(PATH).json() == before.json()


def test_new_fields_are_read_and_written(tenant: TenantView, operator: Any) -> None:
    """A gigabyte of host memory and two on disk by default, nothing on trial."""
    read = operator.get(PATH)
    assert (read.json()["host_bytes"], read.json()["disk_bytes"]) == (1 << 30, 2 << 30)
    assert read.json()["shadow"] == dict.fromkeys(SHADOW_FIELDS)
    body = {"host_bytes": 0, "disk_bytes": 7, "shadow": {"rpm": 60, "max_context": 100}}
    changed = operator.patch(PATH, body, **{"If-Match": read["ETag"]})
    assert (changed.json()["host_bytes"], changed.json()["disk_bytes"]) == (0, 7)
    assert changed.json()["shadow"] == dict.fromkeys(SHADOW_FIELDS) | {"rpm": 60, "max_context": 100}
    trials = operator.get(f"{PATH}trials/").json()["trials"]
    assert {trial["limit"]: trial["value"] for trial in trials} == {"rpm": 60, "max_context": 100}
    ended = operator.patch(PATH, {"shadow": {"rpm": None}}, **{"If-Match": changed["ETag"]})
    assert ended.json()["shadow"] == dict.fromkeys(SHADOW_FIELDS) | {"max_context": 100}


def test_history_is_paged_and_reverts_go_back(
    tenant: TenantView, operator: Any, with_key: Callable[[str], Any], actor: Actor
) -> None:
    """Newest first, each with the policy as it was; a tenant reads its history, an operator goes back in it."""
    first = operator.get(PATH).json()
    for rpm in (1, 2, 3):
        operator.patch(PATH, {"rpm": rpm}, **{"If-Match": operator.get(PATH)["ETag"]})
    page = operator.get(f"{PATH}history/?limit=3").json()
    assert [made["policy"]["rpm"] for made in page["data"]] == [3, 2, 1]
    rest = operator.get(f"{PATH}history/?limit=3&cursor={page['next_cursor']}").json()
    assert [made["policy"] for made in rest["data"]] == [first]
    assert (page["data"][0]["changed"], page["data"][0]["action"]) == (["rpm"], "policy.changed")
    etag = operator.get(PATH)["ETag"]
    assert operator.post(f"{PATH}revert/", {"version": first["version"]}).status_code == 428
    stale = operator.post(f"{PATH}revert/", {"version": first["version"]}, **{"If-Match": '"1"'})
    assert stale.status_code == 412
    owner = with_key(create_management_key(name="k", role="owner", actor=actor, tenant_id=tenant.id).secret)
    assert owner.get(f"{PATH}history/").json()["data"]
    assert owner.post(f"{PATH}revert/", {"version": first["version"]}, **{"If-Match": etag}).status_code == 403
    back = operator.post(f"{PATH}revert/", {"version": first["version"]}, **{"If-Match": etag})
    assert back.status_code == 200
    assert back.json() == first | {"version": back.json()["version"]}
    assert back["ETag"] == f'"{back.json()["version"]}"'


@pytest.mark.parametrize(
    ("param", "body"),
    [
        ("version", {}),
        ("version", {"version": None}),
        ("version", {"version": "1"}),
        ("version", {"version": 0}),
        ("version", {"version": 10**30}),
        ("version", {"version": 99}),
        ("nonsense", {"version": 1, "nonsense": 1}),
        ("overcommit", {"version": 1, "overcommit": "x"}),
        (None, []),
        (None, "1"),
    ],
    ids=str,
)
def test_a_wrong_revert_is_400(tenant: TenantView, operator: Any, param: str | None, body: Any) -> None:
    """The field is named, nothing is written."""
    before = operator.get(PATH)
    refused = operator.post(f"{PATH}revert/", body, **{"If-Match": before["ETag"]})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
    assert operator.get(PATH).json() == before.json()


def test_acks_tell_what_was_over_and_when_it_had_settled(
    tenant: TenantView, make_worker: Callable[..., WorkerView], operator: Any
) -> None:
    """`applied on 2/2, settled on 1/2`: the worker that does not say so is not taken to have settled."""
    make_worker("worker-0")
    make_worker("worker-1")
    version = operator.get(PATH).json()["version"]
    now = timezone.now()
    mark_applied(worker_id="worker-0", version=version, applied_at=now, over_bytes=4096, settle_seconds=0.5)
    mark_applied(worker_id="worker-1", version=version, applied_at=now)
    path = f"policy-versions/{version}/acks/"
    assert (operator.get(path).json()["applied"], operator.get(path).json()["settled"]) == (2, 0)
    assert mark_settled(worker_id="worker-0", version=version, settled_at=timezone.now())
    assert not mark_settled(worker_id="worker-0", version=version, settled_at=timezone.now())
    told = operator.get(path).json()
    assert (told["applied"], told["of"], told["settled"]) == (2, 2, 1)
    over, quiet = told["workers"]
    assert (over["over_bytes"], over["settle_seconds"]) == (4096, 0.5)
    assert over["settled_at"] > over["applied_at"]
    assert (quiet["over_bytes"], quiet["settled_at"]) == (0, None)


def test_a_later_version_that_settled_counts_for_the_earlier(
    tenant: TenantView, make_worker: Callable[..., WorkerView], operator: Any
) -> None:
    """A version that a newer one overtook is not told of by itself."""
    make_worker("worker-0")
    first = operator.get(PATH).json()["version"]
    second = operator.patch(PATH, {"rpm": 1}, **{"If-Match": f'"{first}"'}).json()["version"]
    for version in (first, second):
        mark_applied(worker_id="worker-0", version=version, applied_at=timezone.now())
    mark_settled(worker_id="worker-0", version=second, settled_at=timezone.now())
    assert [operator.get(f"policy-versions/{version}/acks/").json()["settled"] for version in (first, second)] == [1, 1]


def test_operators_read_what_is_left_of_guarantees(
    tenant: TenantView,
    make_worker: Callable[..., WorkerView],
    operator: Any,
    with_key: Callable[[str], Any],
    actor: Actor,
) -> None:
    """The factor is 1 until more is guaranteed than there is room for."""
    make_worker(kv_bytes=1000)
    body = {"kv_soft_bytes": 2000, "overcommit": True}
    assert operator.patch(PATH, body, **{"If-Match": operator.get(PATH)["ETag"]}).status_code == 200
    told = {"pool_bytes": 1000, "room_bytes": 900, "guaranteed_bytes": 2000, "factor": 0.45}
    assert operator.get("guarantees/").json() == told
    owner = with_key(create_management_key(name="k", role="owner", actor=actor, tenant_id=tenant.id).secret)
    assert owner.get("guarantees/").status_code == 403
