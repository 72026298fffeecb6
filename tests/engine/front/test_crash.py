"""Deaths at a chosen token: streams end, usage is exact, nothing is left behind."""

import asyncio
import contextlib
import os
import random
import signal

import grpc
import pytest

from engine.protocol import pb
from tests.engine.front.client import channel
from tests.engine.front.conftest import Run, StartWorker
from tests.engine.front.process import WorkerProcess, process_runs, wait_for
from tests.engine.front.scripted_core import COUNT, DIE, HANG, QUEUE


def test_core_that_dies_ends_its_streams_and_is_replaced(worker: WorkerProcess, run: Run) -> None:
    """A core that dies ends every stream with an error; usage counts what was streamed; the next request works.

    What it wrote in the moment of its death may be lost on the way to the front, and then counts for nobody.
    """

    async def story() -> None:
        async with channel(worker.address) as client:
            stream = client.generate()
            bystander = await stream.submit([HANG, 4], request_id="bystander")
            await stream.tokens(bystander, 4)
            killer = await stream.submit([DIE, 9], request_id="killer")
            for number, counts in ((killer, range(10)), (bystander, [4])):
                end = await stream.end(number)
                assert end.finished.reason == pb.FINISH_REASON_ERROR
                assert "signal 9" in end.finished.detail
                assert end.finished.usage.completion_tokens == len(stream.token_ids(number))
                assert len(stream.token_ids(number)) in counts
            worker.wait_ready(cores=2)
            assert (await stream.end(await stream.submit([COUNT, 6]))).finished.usage.completion_tokens == 6
            control = client.control()
            assert (await control.usage("killer")).completion_tokens == len(stream.token_ids(killer))
            assert (await control.usage("bystander")).finish_reason == pb.FINISH_REASON_ERROR

    run(story())


def test_core_that_dies_ends_all_outputs(worker: WorkerProcess, run: Run) -> None:
    """A core that dies with several outputs on their way ends each of them; what was told is counted."""

    async def story() -> None:
        async with channel(worker.address) as client:
            stream, control = client.generate(), client.control()
            best = await stream.submit([HANG, 5], request_id="best", best_of=4)
            beams = await stream.submit([HANG, 0], request_id="beams", beam_search=pb.BeamSearch(width=4))
            several = await stream.submit([HANG, 7], request_id="several", n=4)  # the last to begin, the longest
            await stream.tokens(several, 28)
            os.kill(worker.core_pid, signal.SIGKILL)
            for number in (several, best, beams):
                end = await stream.end(number)
                assert end.finished.reason == pb.FINISH_REASON_ERROR
                assert "signal 9" in end.finished.detail
            for index in range(4):
                token_ids, _, ends = stream.of_output(several, index)
                assert (len(token_ids), ends) == (7, [pb.FINISH_REASON_ERROR])
            assert not stream.token_ids(best) + stream.token_ids(beams)
            assert (await control.usage("several")).completion_tokens == 28
            assert (await control.usage("best")).completion_tokens == 20
            searched = (await control.usage("beams")).completion_tokens
            assert searched > 0 == searched % 4
            worker.wait_ready(cores=2)
            again = await stream.submit([COUNT, 6], n=2)
            assert (await stream.end(again)).finished.usage.completion_tokens == 12

    run(story())


def test_submit_without_a_core_is_refused(worker: WorkerProcess, run: Run) -> None:
    """While no core is ready, a submit is refused as unavailable at once, and statistics say so."""

    async def story() -> None:
        async with channel(worker.address) as client:
            stream, control = client.generate(), client.control()
            event = await control.read()
            while not event.HasField("stats") or event.stats.core_ready:
                with contextlib.suppress(
                    ProcessLookupError
                ):  # again and again: a first restart is too quick to be seen
                    os.kill(worker.core_pid, signal.SIGKILL)
                event = await control.read()
            end = await stream.end(await stream.submit([COUNT, 1]))
            if end.HasField("refused"):
                assert end.refused.code == pb.REFUSAL_CODE_UNAVAILABLE
                assert "try again" in end.refused.message
            assert event.stats.running == 0

    run(story())


def test_new_core_gets_the_last_policy(worker: WorkerProcess, run: Run) -> None:
    """After a core died, the next one is given the merged policy before anything else and confirms its version."""

    async def story() -> None:
        async with channel(worker.address) as client:
            control = client.control()
            await control.push(pb.PolicyPush(version=3, snapshot=True, tenants=[pb.TenantPolicy(tenant="a", weight=1)]))
            group = pb.ShareGroup(name="g", namespace=b"s" * 32, prefixes=[pb.SharedPrefix(token_ids=range(20))])
            tenants = [pb.TenantPolicy(tenant="b", weight=1, share_groups=["g"])]
            await control.push(pb.PolicyPush(version=4, tenants=tenants, share_groups=[group]))
            await control.until(lambda event: event.applied.version == 4)
            os.kill(worker.core_pid, signal.SIGKILL)
            worker.wait_ready(cores=2)
            await control.until(lambda event: event.applied.version == 4)
            stats = (await control.until(lambda event: event.stats.share_groups)).stats
            assert (stats.share_groups[0].name, stats.share_groups[0].prefix_tokens) == ("g", 20)
            again = client.control()
            hello = (await again.read()).hello
            assert (hello.applied_version, sorted(grant.tenant for grant in hello.grants)) == (4, ["a", "b"])
            assert [list(grant.share_groups) for grant in hello.grants] == [[], ["g"]]

    run(story())


def test_front_killed_leaves_no_core_and_its_usage_is_closed_once(make_worker: StartWorker, run: Run) -> None:
    """After a kill -9 of the front the core is gone, and a restart closes each orphan once with what was streamed."""
    worker = make_worker().start().wait_ready()
    core = worker.core_pid

    async def before() -> None:
        async with channel(worker.address) as client:
            stream = client.generate()
            await stream.end(await stream.submit([COUNT, 5], request_id="ended"))
            for index in range(3):
                number = await stream.submit([HANG, 7 + index], request_id=f"orphan-{index}")
                await stream.tokens(number, 7 + index)
            several = await stream.submit([HANG, 6], request_id="orphan-several", n=4)
            await stream.tokens(several, 24)
            await stream.submit([HANG, 6], request_id="orphan-best", best_of=3)
            await stream.submit([HANG, 0], request_id="orphan-beams", beam_search=pb.BeamSearch(width=4))
            await stream.submit([QUEUE, 0], request_id="orphan-queued")
            await stream.end(await stream.submit([COUNT, 20]))  # what keeps its tokens back has run as long
            worker.kill()

    async def after(restarted: WorkerProcess) -> None:
        async with channel(restarted.address) as client:
            control = client.control()
            records = [await control.usage(f"orphan-{index}") for index in range(3)]
            assert [record.completion_tokens for record in records] == [7, 8, 9]
            assert {record.finish_reason for record in records} == {pb.FINISH_REASON_ERROR}
            assert {record.prompt_tokens for record in records} == {2}
            assert all(record.finished_at >= record.started_at > 0 for record in records)
            assert (await control.usage("orphan-several")).completion_tokens == 24
            assert (await control.usage("orphan-best")).completion_tokens == 18
            searched = (await control.usage("orphan-beams")).completion_tokens
            assert searched > 0 == searched % 4
            assert (await control.usage("orphan-queued")).completion_tokens == 0
            assert (await control.usage("ended")).finish_reason == pb.FINISH_REASON_LENGTH
            ids = [record.request_id for record in control.deliveries]
            assert len(ids) == len(set(ids)) == 9

    run(before())
    wait_for(lambda: not process_runs(core), "the core to be gone")
    for _ in range(2):
        restarted = make_worker().start()
        wait_for(lambda: restarted.events("listening"), "the restarted worker")  # noqa: B023
        restarted.wait_ready()
        run(after(restarted))
        restarted.kill()


def test_policy_outlives_the_worker(make_worker: StartWorker, run: Run) -> None:
    """A restarted worker serves with its last policy while no controller is there."""
    worker = make_worker().start().wait_ready()

    async def before() -> None:
        async with channel(worker.address) as client:
            await client.use_policy(
                pb.PolicyPush(
                    version=9,
                    epoch=2,
                    snapshot=True,
                    tenants=[pb.TenantPolicy(tenant="a", weight=1)],
                    share_groups=[pb.ShareGroup(name="g", namespace=b"s" * 32, prefixes=[pb.SharedPrefix(id="p")])],
                )
            )
            # A stream that sees a usage record has seen the journal commit after the policy was saved.
            stream, control = client.generate(), client.control()
            await stream.end(await stream.submit([COUNT, 1], request_id="one"))
            await control.usage("one")

    async def after(restarted: WorkerProcess) -> None:
        async with channel(restarted.address) as client:
            control = client.control()
            hello = (await control.read()).hello
            assert (hello.applied_version, hello.applied_epoch, hello.grants[0].tenant) == (9, 2, "a")
            assert [group.name for group in hello.share_groups] == ["g"]
            await control.until(lambda event: [use.num_prefixes for use in event.stats.share_groups] == [1])

    run(before())
    worker.kill()
    state = worker.folder / "state"
    assert state.stat().st_mode & 0o777 == 0o700
    files = list(state.glob("journal.sqlite3*"))
    assert any(b"s" * 32 in file.read_bytes() for file in files)
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    assert "s" * 32 not in worker.text()
    run(after(make_worker().start().wait_ready()))


def test_disconnects_in_any_phase_leave_nothing(worker: WorkerProcess, run: Run) -> None:
    """After 200 abrupt disconnects in random phases no request and no block is left, and each ended once."""
    choose = random.Random(7)

    async def disconnect(client: object, index: int, asked: list[str]) -> None:
        stream = client.generate()  # type: ignore[attr-defined]
        request_id = f"gone-{index}"
        number = await stream.submit([choose.choice((COUNT, HANG, QUEUE)), choose.randrange(20)], request_id=request_id)
        asked.append(request_id)
        phase = choose.randrange(3)
        if phase == 1:
            await asyncio.wait({asyncio.create_task(stream.read())}, timeout=choose.random() / 50)
        if phase == 2:
            await stream.cancel(number)
        stream.call.cancel()

    async def story() -> None:
        async with channel(worker.address) as client:
            control = client.control()
            await control.read()
            asked: list[str] = []
            for start in range(0, 200, 20):
                await asyncio.gather(*(disconnect(client, start + index, asked) for index in range(20)))
            stream = client.generate()
            await stream.end(await stream.submit([COUNT, 1], request_id="last"))
            await control.usage("last")
            idle = await control.until(
                lambda event: event.HasField("stats") and event.stats.running + event.stats.queued == 0
            )
            assert idle.stats.blocks_free == idle.stats.blocks_total
            ids = [record.request_id for record in control.deliveries]
            assert len(ids) == len(set(ids))
            assert set(ids) <= {*asked, "last"}

    run(story())
    worker.terminate()
    assert worker.events("stopping")[0]["requests"] == 0


def test_terminated_worker_lets_requests_end(worker: WorkerProcess, run: Run) -> None:
    """After SIGTERM new requests are refused, whatever a controller says, running ones end by themselves, and socket
    and core are gone.
    """
    core = worker.core_pid

    async def story() -> None:
        async with channel(worker.address) as client:
            stream, control = client.generate(), client.control()
            running = await stream.submit([COUNT, 300])
            await stream.tokens(running, 1)
            os.kill(worker.pid, signal.SIGTERM)
            wait_for(lambda: worker.events("stopping"), "the worker to stop")
            await control.call.write(pb.ControlCommand(drain=pb.Drain(draining=False)))
            await control.push(pb.PolicyPush(version=9, snapshot=True))
            await control.until(lambda event: event.applied.version == 9)  # so the line before it has been read
            refused = await stream.submit([COUNT, 1])
            assert (await stream.end(refused)).refused.code == pb.REFUSAL_CODE_DRAINING
            assert (await stream.end(running)).finished.usage.completion_tokens == 300
            with pytest.raises(grpc.aio.AioRpcError, match="shutting down"):
                await stream.read()

    run(story())
    assert worker.wait() == 0
    assert not (worker.folder / "engine.sock").exists()
    assert not process_runs(core)
    assert not list((worker.folder / "state").glob("core-*"))


def test_requests_that_do_not_end_are_ended_at_shutdown(make_worker: StartWorker, run: Run) -> None:
    """What still runs when the drain time is over ends with an error, and its usage is in the journal."""
    worker = make_worker(ENGINE_DRAIN_SECONDS="1").start().wait_ready()

    async def before() -> None:
        async with channel(worker.address) as client:
            stream = client.generate()
            number = await stream.submit([HANG, 3], request_id="hung")
            await stream.tokens(number, 3)
            os.kill(worker.pid, signal.SIGTERM)
            end = await stream.end(number)
            assert (end.finished.reason, end.finished.detail) == (pb.FINISH_REASON_ERROR, "the worker is shutting down")

    async def after(restarted: WorkerProcess) -> None:
        async with channel(restarted.address) as client:
            assert (await client.control().usage("hung")).completion_tokens == 3

    run(before())
    assert worker.wait() == 0
    run(after(make_worker().start().wait_ready()))


def test_wrong_token_is_refused_everywhere(worker: WorkerProcess, run: Run) -> None:
    """Every call without the worker's token is UNAUTHENTICATED, and tells nothing."""

    async def code(call: object) -> grpc.StatusCode:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call  # type: ignore[misc]
        return caught.value.code()

    async def story() -> None:
        for token in ("", "wrong", "worker-token-of-the-tesT", "tökèn"):
            async with channel(worker.address, token.encode().decode("latin-1")) as client:
                metadata = client.metadata if token.isascii() else (("authorization-bin", token.encode()),)
                assert await code(client.stub.Describe(pb.DescribeRequest(), metadata=metadata)) == (
                    grpc.StatusCode.UNAUTHENTICATED
                )
                for call in (client.stub.Generate(metadata=metadata), client.stub.Control(metadata=metadata)):
                    assert await code(call.read()) == grpc.StatusCode.UNAUTHENTICATED

    run(story())
