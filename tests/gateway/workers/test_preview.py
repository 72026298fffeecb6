"""Previews of a policy's change, asked of all live workers at once, and the API that tells them."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from django.test import Client

from engine.protocol import pb, rpc
from gateway.config import config
from gateway.workers import preview as previews
from gateway.workers.preview import PreviewUnavailable, preview
from tenants import selectors
from tenants.contracts import Actor, TenantView, WorkerAnnouncement
from tenants.errors import PolicyInvalid
from tenants.services.keys import create_management_key
from tenants.services.tenants import create_tenant
from tenants.services.workers import announce
from tests.gateway.wire.stack import Stack, wait_for

ACTOR = Actor("system", "tests", "tests")
MIB = 1 << 20


@dataclass
class Previewing(rpc.EngineServicer):
    """A worker that answers with a report of the test's, over a real socket."""

    worker_id: str
    report: pb.PreviewReport = field(default_factory=pb.PreviewReport)
    refusal: grpc.StatusCode | None = None
    meeting: threading.Barrier | None = None  # answered once all have been asked
    requests: list[pb.PreviewRequest] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)

    def Preview(self, request: pb.PreviewRequest, context: Any) -> pb.PreviewReport:  # noqa: N802
        """Answer."""
        self.requests.append(request)
        self.tokens.append(dict(context.invocation_metadata())["authorization"])
        if self.meeting is not None:
            self.meeting.wait(60)
        if self.refusal is not None:
            context.abort(self.refusal, "another preview is at work on this worker")
        return self.report


@contextmanager
def serving(folder: Path, *workers: Previewing, kv_bytes: int = 64 * MIB) -> Iterator[None]:
    """Serve and announce workers, each with a larger pool than the one before."""
    servers = []
    for number, worker in enumerate(workers):
        server = grpc.server(ThreadPoolExecutor(2))
        rpc.add_EngineServicer_to_server(worker, server)
        address = f"unix:{folder}/{worker.worker_id}"
        server.add_insecure_port(address)
        server.start()
        servers.append(server)
        announce(
            announcement=WorkerAnnouncement(
                worker_id=worker.worker_id,
                address=address,
                model="tiny",
                digest="d" * 64,
                kv_bytes=kv_bytes * (number + 1),
                block_bytes=1 << 14,
                max_context=2048,
            )
        )
    try:
        yield
    finally:
        for server in servers:
            server.stop(None).wait()


@pytest.fixture
def whale(db: None) -> TenantView:
    """Return a tenant."""
    return create_tenant(slug="whale", name="Whale", actor=ACTOR, policy={"kv_hard_bytes": 96 * MIB, "max_running": 9})


def told(tenant_id: str, before: dict[str, Any], after: dict[str, Any], **report: Any) -> pb.PreviewReport:
    """Return a worker's report of one tenant."""
    tenant = pb.TenantPreview(tenant=tenant_id, before=pb.PreviewFigures(**before), after=pb.PreviewFigures(**after))
    return pb.PreviewReport(tenants=[tenant], **report)


def test_every_worker_gets_its_grant_of_the_proposal_and_of_what_is(whale: TenantView, tmp_path: Path) -> None:
    """Both are divided by the pools, so that a worker can scale what demand has moved; all are asked at once."""
    meeting = threading.Barrier(2)
    one, two = Previewing("one", meeting=meeting), Previewing("two", meeting=meeting)
    with serving(tmp_path, one, two):
        preview(tenant_id=whale.id, changes={"kv_hard_bytes": 48 * MIB})
    asked = [one.requests[0], two.requests[0]]
    assert [request.tenants[0].kv_hard_bytes for request in asked] == [16 * MIB, 32 * MIB]
    assert [request.current[0].kv_hard_bytes for request in asked] == [32 * MIB, 64 * MIB]
    assert sum(request.tenants[0].max_running for request in asked) == 9
    assert {request.tenants[0].tenant for request in asked} == {whale.id}
    assert {request.seconds for request in asked} == {900.0}
    assert one.tokens == [f"Bearer {config().engine_token}"]


def test_reports_are_merged(whale: TenantView, tmp_path: Path) -> None:
    """Counts add up, the worst worker's percentiles stand, hit rates are weighed by tokens, pressure by pools."""
    one = Previewing(
        "one",
        told(
            whale.id,
            {"num_requests": 3, "prompt_tokens": 100, "cached_tokens": 50, "ttft_p99_seconds": 2, "kv_peak_bytes": 5},
            {"num_requests": 3, "prompt_tokens": 100, "cached_tokens": 0, "ttft_p99_seconds": 3, "evicted_blocks": 4},
            seconds=100,
            num_events=10,
            pressure_before=0.3,
            pressure_after=0.6,
        ),
    )
    two = Previewing(
        "two",
        told(
            whale.id,
            {"num_requests": 1, "prompt_tokens": 300, "cached_tokens": 300, "ttft_p99_seconds": 1, "kv_peak_bytes": 7},
            {"num_requests": 1, "prompt_tokens": 300, "cached_tokens": 300, "ttft_p99_seconds": 1, "evicted_blocks": 1},
            seconds=900,
            num_events=30,
            pressure_before=0.6,
            pressure_after=0.0,
        ),
    )
    with serving(tmp_path, one, two):
        view = preview(tenant_id=whale.id, changes={"kv_hard_bytes": 48 * MIB})
    (tenant,) = view.tenants
    assert (tenant.slug, tenant.name, tenant.is_idle) == ("whale", "Whale", False)
    assert (tenant.before.num_requests, tenant.before.kv_peak_bytes, tenant.after.evicted_blocks) == (4, 12, 5)
    assert (tenant.before.ttft_p99_seconds, tenant.after.ttft_p99_seconds) == (2, 3)
    assert (view.hit_rate_before, view.hit_rate_after) == (350 / 400, 300 / 400)
    assert (view.pressure_before, view.pressure_after) == pytest.approx((0.5, 0.2))
    assert (view.seconds, view.num_events, view.problem) == (900, 40, "")
    assert (view.before.kv_hard_bytes, view.after.kv_hard_bytes) == (96 * MIB, 48 * MIB)


def test_one_worker_that_fails_is_named_and_the_others_count(whale: TenantView, tmp_path: Path) -> None:
    """What the rest have replayed is told, with the reason of the one that has not."""
    one = Previewing("one", told(whale.id, {"num_requests": 3}, {"num_requests": 3}, seconds=10))
    two = Previewing("two", refusal=grpc.StatusCode.RESOURCE_EXHAUSTED)
    with serving(tmp_path, one, two):
        view = preview(tenant_id=whale.id, changes={"weight": 2})
    assert [worker.problem for worker in view.workers] == ["", "another preview is at work on this worker"]
    assert view.tenants[0].before.num_requests == 3
    assert view.problem == ""


def test_nothing_to_replay_is_an_answer(whale: TenantView, tmp_path: Path) -> None:
    """Workers that were idle say so, once."""
    report = pb.PreviewReport(problem="No request has come to this worker in that time.")
    with serving(tmp_path, Previewing("one", report), Previewing("two", report)):
        view = preview(tenant_id=whale.id, changes={"weight": 2})
    assert view.problem == "No request has come to this worker in that time."
    assert view.tenants == ()


def test_no_worker_is_an_error_that_says_why(whale: TenantView, tmp_path: Path) -> None:
    """None is live; none can be reached; each is busy."""
    with pytest.raises(PreviewUnavailable, match="No worker is live"):
        preview(tenant_id=whale.id, changes={"weight": 2})
    one = Previewing("one", refusal=grpc.StatusCode.RESOURCE_EXHAUSTED)
    with serving(tmp_path, one), pytest.raises(PreviewUnavailable, match="one: another preview is at work"):
        preview(tenant_id=whale.id, changes={"weight": 2})
    with pytest.raises(PreviewUnavailable, match="one: it cannot be reached"):
        preview(tenant_id=whale.id, changes={"weight": 2})


def test_a_proposal_that_a_change_would_refuse_asks_nobody(whale: TenantView, tmp_path: Path) -> None:
    """The same rules as for the change itself, the guarantees of all against the pool included."""
    one = Previewing("one")
    with serving(tmp_path, one):
        for changes, found in (
            ({}, ""),
            ({"kv_soft_bytes": 97 * MIB}, "kv_soft_bytes"),
            ({"kv_soft_bytes": 60 * MIB}, "kv_soft_bytes"),
            ({"weight": 0}, "weight"),
            ({"share_group": "nowhere"}, "share_group"),
        ):
            with pytest.raises(PolicyInvalid) as refused:
                preview(tenant_id=whale.id, changes=changes)
            assert refused.value.field == found
        assert not one.requests
        assert preview(tenant_id=whale.id, changes={"kv_soft_bytes": 60 * MIB}, overcommit=True)


@pytest.fixture
def post(db: None) -> Callable[..., Any]:
    """Return a POST to the API of what is given, as an operator."""
    key = create_management_key(name="tests", role="operator", actor=ACTOR).secret

    def send(slug: str, body: Any, authorization: str = f"Bearer {key}") -> Any:
        path = f"/api/v1/tenants/{slug}/policy/preview/"
        return Client().post(path, body, content_type="application/json", headers={"Authorization": authorization})

    return send


def test_the_api_answers_with_the_report(whale: TenantView, tmp_path: Path, post: Callable[..., Any]) -> None:
    """200, and the policy is as it was."""
    before = selectors.policy(whale.id)
    report = told(whale.id, {"num_requests": 0}, {"num_requests": 0}, seconds=60, num_events=5)
    with serving(tmp_path, Previewing("one", report)):
        response = post("whale", {"kv_hard_bytes": MIB})
    assert response.status_code == 200
    body = response.json()
    assert (body["policy"]["kv_hard_bytes"], body["seconds"], body["problem"]) == (MIB, 60, "")
    assert (body["tenants"][0]["slug"], body["tenants"][0]["is_idle"]) == ("whale", True)
    assert body["workers"][0]["worker_id"] == "one"
    assert selectors.policy(whale.id) == before


def test_the_api_refuses_as_a_change_would(whale: TenantView, tmp_path: Path, post: Callable[..., Any]) -> None:
    """400 names the field, 404 an unknown tenant, 403 and 401 who may not, 503 that nobody can replay."""
    with serving(tmp_path, Previewing("one")):
        for body, param in (({"rpm": -1}, "rpm"), ({"nonsense": 1}, "nonsense"), ({"overcommit": 1}, "overcommit")):
            refused = post("whale", body)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
        assert post("whale", {}).status_code == 400
        assert post("whale", []).status_code == 400
        assert post("nobody", {"rpm": 1}).status_code == 404
        owner = create_management_key(name="o", role="owner", tenant_id=whale.id, actor=ACTOR).secret
        assert post("whale", {"rpm": 1}, f"Bearer {owner}").status_code == 403
        assert post("whale", {"rpm": 1}, "").status_code == 401
    away = post("whale", {"rpm": 1})
    assert (away.status_code, away.json()["error"]["code"]) == (503, "no_worker")
    assert "one: it cannot be reached" in away.json()["error"]["message"]


def test_a_real_deployment_replays_what_it_has_served(stack: Stack) -> None:
    """Through HTTP in and out: a tenant's own chats come back in the preview of a change of its limits."""
    minnow = stack.tenant()
    client = stack.openai(minnow.key())
    for _ in range(3):
        client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "hello " * 30}], max_tokens=5
        )
    key = str(stack.seed(do="operator")["secret"])

    answers: list[Any] = []

    def ask() -> Any:
        with stack.http(key) as http:
            answer = http.post(f"/api/v1/tenants/{minnow.slug}/policy/preview/", json={"max_context": 8}).json()
        answers.append(answer)
        mine = [tenant for tenant in answer.get("tenants", []) if tenant["slug"] == minnow.slug]
        return answer if mine and mine[0]["before"]["num_requests"] >= 3 else None

    answer = wait_for(ask, 60, "three requests in the preview", lambda: str(answers[-1])[:2000])
    mine = next(tenant for tenant in answer["tenants"] if tenant["slug"] == minnow.slug)
    num_requests = mine["before"]["num_requests"]  # more than three where one was sent again: its policy came late
    assert (mine["before"]["num_refused"], mine["after"]["num_refused"]) == (0, num_requests)
    assert mine["before"]["output_tokens"] <= 5 * num_requests
    assert previews.SECONDS >= answer["seconds"] > 0
