"""The preview of limits, over the wire: a helper process replays what the worker itself has recorded."""

import asyncio
import hashlib
import os
from pathlib import Path

import grpc
import pytest

from engine.protocol import pb
from tests.engine.front.client import POLICY, Client, channel
from tests.engine.front.conftest import Run, StartWorker
from tests.engine.front.process import WorkerProcess, process_runs, wait_for

NAMESPACE = hashlib.sha256(b"minnow").digest()
SHORT = {"max_tokens": 8, "ignore_eos": True}


def proposal(**changes: object) -> pb.PreviewRequest:
    """Return a request to preview changes of the only tenant's limits."""
    tenant = pb.TenantPolicy()
    tenant.CopyFrom(POLICY.tenants[0])
    for name, value in changes.items():
        setattr(tenant, name, value)
    return pb.PreviewRequest(tenants=[tenant])


async def preview(client: Client, request: pb.PreviewRequest) -> pb.PreviewReport:
    """Ask for a preview; again where the machine had no time for it, since nothing is to wait for a preview."""
    while True:
        try:
            return await client.stub.Preview(request, metadata=client.metadata, timeout=60)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                raise


async def serve_some(client: Client, count: int) -> None:
    """Let requests with a common beginning run one after the other."""
    await client.use_policy()
    stream = client.generate()
    for index in range(count):
        number = await stream.submit([1 + i % 90 for i in range(64)] + [index + 1], namespace=NAMESPACE, sampling=SHORT)
        assert (await stream.end(number)).finished.reason == pb.FINISH_REASON_LENGTH


async def until_recorded(client: Client, count: int) -> pb.PreviewReport:
    """Return a preview of unchanged limits once so many requests, each to its last token, are in the trace."""
    while True:
        report = await preview(client, proposal())
        if report.tenants:
            figures = report.tenants[0].before
            if figures.num_requests >= count and figures.output_tokens >= count * SHORT["max_tokens"]:
                return report


def test_replays_what_the_worker_has_served(engine: WorkerProcess, run: Run) -> None:
    """Requests, hits and tokens are those that were served; the same limits make no difference, lower ones do."""

    async def story() -> None:
        async with channel(engine.address) as client:
            await serve_some(client, 5)
            report = await until_recorded(client, 5)
            assert not report.problem
            assert 0 < report.seconds < 120
            assert report.num_events >= 5 * 4
            tenant = report.tenants[0]
            assert tenant.before == tenant.after
            figures = tenant.before
            assert (figures.num_requests, figures.prompt_tokens, figures.output_tokens) == (5, 5 * 65, 5 * 8)
            assert figures.cached_tokens == 4 * 64
            assert report.hit_rate_before == pytest.approx(4 * 64 / (5 * 65))
            assert figures.ttft_p99_seconds >= figures.ttft_p50_seconds > 0
            refused = await preview(client, proposal(max_context_tokens=60))
            assert (refused.tenants[0].before.num_refused, refused.tenants[0].after.num_refused) == (0, 5)

    run(story())


@pytest.mark.parametrize(
    ("field", "request_"),
    [
        ("seconds", pb.PreviewRequest(tenants=POLICY.tenants, seconds=-1)),
        ("seconds", pb.PreviewRequest(tenants=POLICY.tenants, seconds=float("nan"))),
        ("tenants", pb.PreviewRequest()),
        ("tenants[1].tenant", pb.PreviewRequest(tenants=[*POLICY.tenants, pb.TenantPolicy(weight=1)])),
        ("tenants[1].tenant", pb.PreviewRequest(tenants=[*POLICY.tenants, *POLICY.tenants])),
        ("tenants[0].weight", proposal(weight=0)),
        ("tenants[0].kv_soft_bytes", proposal(kv_soft_bytes=33 << 20)),
    ],
    ids=str,
)
def test_a_malformed_proposal_names_its_field(
    shared_worker: WorkerProcess, run: Run, field: str, request_: pb.PreviewRequest
) -> None:
    """INVALID_ARGUMENT, and no helper is started for it."""

    async def story() -> None:
        async with channel(shared_worker.address) as client:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await preview(client, request_)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert (refused.value.details() or "").startswith(f"{field}: ")

    run(story())


def test_says_that_there_is_nothing_to_replay(shared_worker: WorkerProcess, run: Run) -> None:
    """A worker without a trace answers with the reason and no figures."""

    async def story() -> None:
        async with channel(shared_worker.address) as client:
            report = await preview(client, proposal())
            assert "ENGINE_TRACE_BYTES" in report.problem
            assert not report.tenants

    run(story())


def children(pid: int, command: bytes = b"engine.replay") -> list[int]:
    """Return the process ids of a process's children that run a command."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            is_it = command in (entry / "cmdline").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if parent == pid and is_it:
            found.append(int(entry.name))
    return found


def at_work(worker: WorkerProcess) -> list[int]:
    """Return the process ids of the worker's helper and of what it has started for a task, once there is one."""
    for helper in children(worker.pid):
        if tasks := children(helper):
            return [helper, *tasks]
    return []


@pytest.fixture
def held(make_worker: StartWorker) -> WorkerProcess:
    """A worker whose helper waits for ever on a task: the trace is a pipe that nobody writes to."""
    worker = make_worker().start().wait_ready()
    os.mkfifo(worker.folder / "state" / "trace", 0o600)
    return worker


def test_one_at_a_time_and_killed_when_the_client_leaves(held: WorkerProcess, run: Run) -> None:
    """A second preview is told to wait; a cancelled one leaves no process and makes room for the next."""

    async def story() -> None:
        async with channel(held.address) as client:
            first = asyncio.create_task(preview(client, proposal()))
            working = await asyncio.to_thread(wait_for, lambda: at_work(held), "the helper")
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await preview(client, proposal())
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            first.cancel()
            await asyncio.to_thread(wait_for, lambda: not any(map(process_runs, working)), "the helper's end")
            (held.folder / "state" / "trace").unlink()
            report = await preview(client, proposal())
            assert report.problem

    run(story())


def test_a_helper_dies_with_its_front(held: WorkerProcess, run: Run) -> None:
    """Killed, the front leaves no helper behind."""

    async def story() -> None:
        async with channel(held.address) as client:
            asking = asyncio.create_task(preview(client, proposal()))
            working = await asyncio.to_thread(wait_for, lambda: at_work(held), "the helper")
            held.kill()
            with pytest.raises(grpc.aio.AioRpcError):
                await asking
            await asyncio.to_thread(wait_for, lambda: not any(map(process_runs, working)), "the helper's end")

    run(story())


@pytest.mark.parametrize(("setting", "policy"), [("19", os.SCHED_IDLE), ("7", os.SCHED_OTHER)])
def test_the_helper_gives_way_as_far_as_it_is_told(setting: str, policy: int, make_worker: StartWorker) -> None:
    """At the lowest priority it takes no time that anybody else wants; one may let it take some."""
    worker = make_worker(ENGINE_PREVIEW_NICE=setting).start().wait_ready()

    def gives_way(helper: int) -> bool:
        return (os.getpriority(os.PRIO_PROCESS, helper), os.sched_getscheduler(helper)) == (int(setting), policy)

    wait_for(lambda: any(map(gives_way, children(worker.pid))), "the helper to step back")
