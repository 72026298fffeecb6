"""A whale and a minnow on a real worker: what one's need cost the other ends up in the operator's API."""

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from engine.protocol import engine_pb2 as pb
from tenants.models import InterferenceSample, TenantSample
from tenants.services.keys import create_management_key
from tenants.services.tenants import create_tenant
from tenants.services.workers import announce
from tests.engine.front.process import WorkerProcess
from tests.engine.tiny_model import make_tiny_model
from tests.gateway.controller.conftest import SYSTEM, controller, in_thread, until_stored
from tests.gateway.controller.scripted_worker import TOKEN
from tests.gateway.controller.test_policy_push import all_applied
from tests.gateway.controller.test_real_worker import card, generate


@pytest.fixture
def engine() -> Iterator[WorkerProcess]:
    """A worker with room for 512 tokens."""
    with tempfile.TemporaryDirectory(prefix="tg-") as name:
        folder = Path(name)
        environment = {"ENGINE_TOKEN": TOKEN, "ENGINE_WORKER_ID": "real", "OMP_NUM_THREADS": "1"}
        environment["ENGINE_KV_BYTES"] = "256KiB"
        worker = WorkerProcess(folder, make_tiny_model(folder / "tiny"), scripted=False, **environment)
        try:
            yield worker.start().wait_ready()
        finally:
            worker.close()


def taken() -> int:
    """The cached blocks that the series knows of."""
    return sum(pair.cached_blocks for pair in InterferenceSample.objects.across_tenants())


def served() -> float:
    """The service that the series knows of."""
    return sum(sample.service for sample in TenantSample.objects.across_tenants())


def test_what_a_minnows_need_costs_a_whale(tenant: str, engine: WorkerProcess, monkeypatch: Any) -> None:
    """Blocks that the whale had cached make room; the matrix, the tenants' lines and a second core's counts agree."""
    monkeypatch.setattr("gateway.controller.series.FINE_SECONDS", 1)
    monkeypatch.setattr("gateway.controller.tally.FINE_SECONDS", 1)
    monkeypatch.setattr("gateway.controller.series.GRACE_SECONDS", 0.0)
    policy = {"kv_hard_bytes": 256 << 10, "max_running": 8}
    whale = create_tenant(slug="whale", name="Whale", actor=SYSTEM, policy=policy).id

    async def story() -> None:
        async with controller():
            await in_thread(lambda: announce(announcement=card(engine)))
            await until_stored(lambda: all_applied(2))
            for life in (1, 2):
                for name, owner, num_tokens in (("whale", whale, 400), ("minnow", tenant, 300)):
                    done = await generate(engine, owner, f"{name}-{life}", num_tokens, 2)
                    assert done.finished.reason == pb.FINISH_REASON_LENGTH, done
                await until_stored(lambda life=life: served() == life * (416 + 316) and taken() >= life * 11)
                if life == 1:
                    engine.kill()
                    await asyncio.to_thread(lambda: engine.start().wait_ready(cores=2))

    asyncio.run(story())
    key = create_management_key(name="tests", role="operator", actor=SYSTEM).secret
    client = Client(headers={"Authorization": f"Bearer {key}"})
    (pair,) = client.get("/api/v1/interference/").json()["pairs"]
    assert (pair["by"], pair["of"], pair["cached_blocks"]) == ("minnow", "whale", taken())
    lines = {line["tenant"]: line["points"] for line in client.get("/api/v1/series/tenants/").json()["tenants"]}
    service = {name: sum(point["service"] for point in points) for name, points in lines.items()}
    assert service == {"whale": 2 * (400 + 2 * 8), "minnow": 2 * (300 + 2 * 8)}
    fairness = client.get("/api/v1/fairness/").json()
    shares = [832.0, 632.0]
    assert [line["share"] for line in fairness["tenants"]] == shares
    assert fairness["jain"] == pytest.approx(sum(shares) ** 2 / (2 * sum(share * share for share in shares)))
    (worker,) = client.get("/api/v1/series/pressure/").json()["workers"]
    assert worker["worker_id"] == "real"
    assert all(0 <= point["score"] <= point["score_peak"] < 1 for point in worker["points"])
