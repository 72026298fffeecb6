"""The controller against `python -m engine` itself, on a tiny model."""

import asyncio
import hashlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import grpc.aio
import msgspec
import pytest
import redis
from django.conf import settings

from engine.protocol import engine_pb2 as pb
from engine.protocol.engine_pb2_grpc import EngineStub
from gateway.workers.model import Model, model_from_card
from tenants.contracts import WorkerAnnouncement
from tenants.models import UsageRecord
from tenants.reports import STATS_KEY, WorkerStats
from tenants.services.tenants import create_tenant
from tenants.services.workers import announce
from tests.engine.front.process import WorkerProcess
from tests.engine.tiny_model import make_tiny_model
from tests.gateway.controller.conftest import SYSTEM, controller, in_thread, set_hard, until, until_stored
from tests.gateway.controller.scripted_worker import TOKEN
from tests.gateway.controller.test_policy_push import all_applied
from tests.gateway.controller.test_sharing import PROMPT, make_group, readings, register

MIB = 1 << 20


@pytest.fixture
def engine() -> Iterator[WorkerProcess]:
    """A worker that is ready."""
    with tempfile.TemporaryDirectory(prefix="tg-") as name:
        folder = Path(name)
        environment = {"ENGINE_TOKEN": TOKEN, "ENGINE_WORKER_ID": "real", "OMP_NUM_THREADS": "1"}
        worker = WorkerProcess(folder, make_tiny_model(folder / "tiny"), scripted=False, **environment)
        try:
            yield worker.start().wait_ready()
        finally:
            worker.close()


def card(worker: WorkerProcess) -> WorkerAnnouncement:
    """Return what the worker would announce."""
    return WorkerAnnouncement(
        worker_id="real",
        address=worker.address,
        model="tiny",
        digest="",
        kv_bytes=16 * MIB,
        block_bytes=1 << 12,
        max_context=2048,
    )


async def generate(worker: WorkerProcess, tenant: str, request_id: str, num_prompt: int, version: int) -> pb.Event:
    """Run one request of a made-up prompt and return its last event."""
    return await run(worker, tenant, request_id, [5 + i % 200 for i in range(num_prompt)], version)


async def run(worker: WorkerProcess, tenant: str, request_id: str, prompt: list[int], version: int) -> pb.Event:
    """Run one request in its tenant's namespace and return its last event."""
    submit = pb.Submit(
        stream=1,
        request_id=request_id,
        tenant=tenant,
        key="abc123",
        namespace=hashlib.sha256(tenant.encode()).digest(),
        token_ids=prompt,
        sampling=pb.Sampling(max_tokens=8, temperature=0, top_p=1, ignore_eos=True),
        policy_version=version,
    )
    async with grpc.aio.insecure_channel(worker.address) as channel:
        stub = EngineStub(channel)  # type: ignore[no-untyped-call]  # generated code
        call = stub.Generate(metadata=(("authorization", f"Bearer {TOKEN}"),))
        await call.write(pb.Command(submit=submit))
        async for step in call:
            for event in step.events:
                if event.WhichOneof("kind") in ("finished", "refused"):
                    call.cancel()
                    return event
    raise AssertionError("the stream ended before the request")


def test_limits_reach_the_next_step_and_usage_comes_back(tenant: str, engine: WorkerProcess) -> None:
    """A request that fits runs and is metered exactly; after the operator's change it is refused, naming the limit."""

    async def story() -> None:
        async with controller():
            await in_thread(lambda: announce(announcement=card(engine)))
            await until_stored(lambda: all_applied(1))
            done = await generate(engine, tenant, "r-1", 300, 1)
            assert done.finished.reason == pb.FINISH_REASON_LENGTH
            record = await until_stored(lambda: UsageRecord.objects.across_tenants().filter(pk="r-1").first())
            assert (record.prompt_tokens, record.completion_tokens) == (300, 8)
            version = await in_thread(lambda: set_hard(tenant, 1, 64 << 10, host_bytes=0))
            await until_stored(lambda: all_applied(version))
            refused = await generate(engine, tenant, "r-2", 300, version)
            assert refused.refused.code == pb.REFUSAL_CODE_KV_LIMIT, refused

    asyncio.run(story())


def test_a_killed_worker_is_met_again(tenant: str, engine: WorkerProcess) -> None:
    """After kill -9 of the whole worker it comes back under its last policy and takes up what was written meanwhile."""

    async def story() -> None:
        async with controller():
            await in_thread(lambda: announce(announcement=card(engine)))
            await until_stored(lambda: all_applied(1))
            engine.kill()
            version = await in_thread(lambda: set_hard(tenant, 1, 3 * MIB))
            await asyncio.to_thread(lambda: engine.start().wait_ready(cores=2))
            await until_stored(lambda: all_applied(version))

    asyncio.run(story())


def test_changes_in_a_row_are_each_applied(tenant: str, engine: WorkerProcess) -> None:
    """Each of 40 changes reaches the worker's step before the next is written; how fast is `bench.push`'s to say."""

    async def story() -> None:
        async with controller():
            await in_thread(lambda: announce(announcement=card(engine)))
            await until_stored(lambda: all_applied(1))
            version = 1
            for turn in range(40):
                at = version
                version = await in_thread(lambda at=at, hard=turn: set_hard(tenant, at, (8 << 20) + hard))
                acks = await until_stored(lambda at=version: all_applied(at))
                assert (acks.version, acks.applied) == (version, 1)

    asyncio.run(story())


def num_held(worker_id: str) -> int:
    """Return how many prefixes of `house` a worker says that it has; 0 while it says nothing."""
    with redis.Redis.from_url(settings.REDIS_URL) as client:
        raw = client.get(STATS_KEY.format(worker_id=worker_id))
    uses = msgspec.json.decode(raw, type=WorkerStats).share_groups if raw else ()
    return sum(use.num_prefixes for use in uses if use.name == "house")


async def model_of(worker: WorkerProcess) -> Model:
    """Return the model as a web process knows it."""
    async with grpc.aio.insecure_channel(worker.address) as channel:
        stub = EngineStub(channel)  # type: ignore[no-untyped-call]  # generated code
        return model_from_card(
            await stub.Describe(pb.DescribeRequest(), metadata=(("authorization", f"Bearer {TOKEN}"),)), created=0
        )


def test_a_registered_prefix_is_held_for_the_whole_group(tenant: str, engine: WorkerProcess) -> None:
    """What one member's chat computed, another's finds, after kill -9 of the worker as well; a stranger never does."""

    def member(slug: str) -> str:
        return create_tenant(slug=slug, name=slug, actor=SYSTEM, policy={"share_group": "house"}).id

    async def story() -> None:
        async with controller():
            await in_thread(lambda: announce(announcement=card(engine)))
            await in_thread(make_group)
            alpha, beta, late = [await in_thread(lambda slug=slug: member(slug)) for slug in ("alpha", "beta", "late")]
            prefix = await in_thread(register)
            reading = await until(lambda: readings("real").get(prefix.id))
            model = await model_of(engine)
            version = prefix.version

            async def cached(tenant_id: str, request_id: str) -> int:
                chat = [{"role": "system", "content": PROMPT}, {"role": "user", "content": request_id}]
                ended = await run(engine, tenant_id, request_id, await model.chat_tokens(chat), version)
                assert ended.WhichOneof("kind") == "finished", ended
                return ended.finished.usage.cached_tokens

            await until_stored(lambda: all_applied(version))
            await until(lambda: num_held("real") == 1)
            assert await cached(alpha, "r-alpha") == 0
            assert reading.shared_tokens <= await cached(beta, "r-beta") < reading.shared_tokens + 16
            assert await cached(tenant, "r-stranger") == 0

            engine.kill()
            await until(lambda: num_held("real") == 0)
            await asyncio.to_thread(lambda: engine.start().wait_ready(cores=2))
            await until(lambda: num_held("real") == 1)
            assert await cached(beta, "r-beta-again") == 0
            assert await cached(late, "r-late") >= reading.shared_tokens

    asyncio.run(story())
