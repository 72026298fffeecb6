"""Control streams over the real front and a scripted core."""

import asyncio

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from engine.protocol import pb
from tests.engine.front.client import channel
from tests.engine.front.conftest import Run, StartWorker
from tests.engine.front.process import WorkerProcess, wait_for
from tests.engine.front.scripted_core import BLOCK_BYTES, BLOCKS, COUNT, HANG


def test_hello_comes_first(worker: WorkerProcess, run: Run) -> None:
    """The first event names the worker and its pool."""

    async def story() -> None:
        async with channel(worker.address) as client:
            hello = (await client.control().read()).hello
            assert hello == pb.Hello(worker_id="worker-0", kv_bytes=BLOCKS * BLOCK_BYTES, block_bytes=BLOCK_BYTES)

    run(story())


def test_policy_is_applied_and_older_pushes_are_only_acked(worker: WorkerProcess, run: Run) -> None:
    """A push is acked when the core has it; an older one, or the same again, changes nothing and gets the same acks."""

    async def story() -> None:
        async with channel(worker.address) as client:
            control = client.control()
            await control.push(
                pb.PolicyPush(version=5, epoch=1, snapshot=True, tenants=[pb.TenantPolicy(tenant="new", weight=1)])
            )
            first = (await control.until(lambda event: event.HasField("applied"))).applied
            assert (first.version, first.epoch) == (5, 1)
            assert first.at > 0
            settled = (await control.until(lambda event: event.HasField("settled"))).settled
            assert (settled.version, settled.epoch) == (5, 1)
            for version, epoch in ((4, 9), (5, 0), (5, 1)):
                old = pb.TenantPolicy(tenant="old", weight=1)
                await control.push(pb.PolicyPush(version=version, epoch=epoch, snapshot=True, tenants=[old]))
                assert (await control.until(lambda event: event.HasField("applied"))).applied == first
                assert (await control.until(lambda event: event.HasField("settled"))).settled == settled
            hello = (await client.control().read()).hello
            assert [grant.tenant for grant in hello.grants] == ["new"]

    run(story())


def test_statistics_flow(worker: WorkerProcess, run: Run) -> None:
    """Statistics follow the core: a running request and its block show, with the applied version."""

    async def story() -> None:
        async with channel(worker.address) as client:
            stream, control = client.generate(), client.control()
            await control.push(pb.PolicyPush(version=2, snapshot=True))
            await stream.submit([HANG, 3])
            event = await control.until(lambda event: event.stats.running == 1 and event.stats.applied_version == 2)
            assert event.stats.core_ready
            assert event.stats.blocks_open == 1
            assert event.stats.block_bytes == BLOCK_BYTES

    run(story())


def test_new_stream_supersedes_the_old(worker: WorkerProcess, run: Run) -> None:
    """A second controller takes over; the first one's stream ends with ABORTED."""

    async def story() -> None:
        async with channel(worker.address) as client:
            old = client.control()
            await old.read()
            new = client.control()
            await new.read()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await old.until(lambda _event: False)
            assert caught.value.code() == grpc.StatusCode.ABORTED
            await new.push(pb.PolicyPush(version=1, snapshot=True))
            await new.until(lambda event: event.applied.version == 1)

    run(story())


def test_usage_comes_again_until_it_is_acked(worker: WorkerProcess, run: Run) -> None:
    """Each new stream gets every unacked record, with the same sequence; acked ones never come again."""

    async def story() -> None:
        async with channel(worker.address) as client:
            stream = client.generate()
            for index in range(6):
                await stream.end(await stream.submit([COUNT, index + 1], request_id=f"r{index}"))
            first = client.control()
            await first.usage("r5")
            sequences = {record.request_id: record.sequence for record in first.deliveries}
            assert sorted(sequences.values()) == list(sequences.values())
            await first.ack(sequences["r2"])
            await first.ack(sequences["r0"])  # an older ack takes nothing back
            await first.until(lambda event: event.HasField("stats"))
            second = client.control()
            await second.usage("r5")
            assert [record.request_id for record in second.deliveries] == ["r3", "r4", "r5"]
            assert second.records["r3"] == first.records["r3"]
            await second.ack(2**63)  # more than was ever sent: only what was delivered counts
            await stream.end(await stream.submit([COUNT, 1], request_id="later"))
            third = client.control()
            await third.usage("later")
            assert [record.request_id for record in third.deliveries] == ["later"]

    run(story())


def test_record_is_what_the_client_was_told(worker: WorkerProcess, run: Run) -> None:
    """The usage record carries whose request it was, and the counts that the client got."""

    async def story() -> None:
        async with channel(worker.address) as client:
            stream, control = client.generate(), client.control()
            submit = {"project": "p", "key": "k", "session": "s"}
            number = await stream.submit([COUNT, 12, 0, 0], request_id="told", **submit)
            usage = (await stream.end(number)).finished.usage
            record = await control.usage("told")
            assert (record.prompt_tokens, record.cached_tokens, record.completion_tokens) == (4, 1, 12)
            assert usage == pb.Usage(prompt_tokens=4, cached_tokens=1, completion_tokens=12)
            assert (record.tenant, record.project, record.key, record.session) == ("minnow", "p", "k", "s")
            assert (record.model, record.worker_id) == ("tiny", "worker-0")
            assert (record.kv_device_byte_seconds, record.queue_seconds) == (12.0, 0.25)
            assert 0 < record.ttft_seconds < record.finished_at - record.started_at + 1
            assert record.finish_reason == pb.FINISH_REASON_LENGTH

    run(story())


def test_many_records_come_in_batches(worker: WorkerProcess, run: Run) -> None:
    """A backlog of records arrives whole and in order, in batches, and goes with one ack."""

    async def story() -> None:
        async with channel(worker.address) as client:
            stream = client.generate()
            numbers = [await stream.submit([COUNT, 1], request_id=f"n{index}") for index in range(600)]
            for number in numbers:
                await stream.end(number)
            control = client.control()
            while len(control.records) < 600:
                await control.read()
            sequences = [record.sequence for record in control.deliveries]
            assert sequences == sorted(set(sequences))
            await control.ack(sequences[-1])
            await control.until(lambda event: event.HasField("stats"))
            again = client.control()
            await again.until(lambda event: event.HasField("stats"))
            assert not again.deliveries

    run(story())


def test_controller_that_does_not_read_delays_nobody(worker: WorkerProcess, run: Run) -> None:
    """While a controller leaves everything unread, requests with several outputs end as ever, and every record is there
    when it reads at last.
    """
    group = pb.ShareGroup(name="g", namespace=b"s" * 32, prefixes=[pb.SharedPrefix(token_ids=range(300))] * 64)

    async def story() -> None:
        window = {"http2.bdp_probe": 0, "http2.lookahead_bytes": 65535}
        async with channel(worker.address) as client, channel(worker.address, **window) as lazy:
            control, stream = lazy.control(), client.generate()
            await control.push(pb.PolicyPush(version=1, snapshot=True, share_groups=[group]))
            for start in range(0, 1200, 100):
                asked = [await stream.submit([COUNT, 3], request_id=f"r{start + i}", n=4) for i in range(100)]
                for number in asked:
                    assert (await stream.end(number)).finished.usage.completion_tokens == 12
            while len(control.records) < 1200:
                await control.read()
            assert {record.completion_tokens for record in control.deliveries} == {12}
            assert len(control.deliveries) == 1200

    run(story())


def test_drain_refuses_and_can_be_taken_back(worker: WorkerProcess, run: Run) -> None:
    """A draining worker refuses new requests as draining, and takes them again when told so."""

    async def refused(stream: object) -> bool:
        end = await stream.end(await stream.submit([COUNT, 1]))  # type: ignore[attr-defined]
        return bool(end.refused.code == pb.REFUSAL_CODE_DRAINING)

    async def story() -> None:
        async with channel(worker.address) as client:
            stream, control = client.generate(), client.control()
            await control.call.write(pb.ControlCommand(drain=pb.Drain(draining=True)))
            while not await refused(stream):
                pass
            await control.call.write(pb.ControlCommand(drain=pb.Drain(draining=False)))
            while await refused(stream):
                pass

    run(story())


def test_describe_and_health(worker: WorkerProcess, run: Run) -> None:
    """The card carries what a gateway needs to tokenise, and health says SERVING once the core is ready."""

    async def story() -> None:
        async with channel(worker.address) as client:
            card = await client.describe()
            assert (card.worker_id, card.model, card.num_blocks, card.block_size) == ("worker-0", "tiny", BLOCKS, 16)
            assert card.tokenizer_json.startswith(b"{")
            assert "<|im_start|>" in card.chat_template
            assert (card.vocab_size, card.max_context_tokens, card.kernel_backend) == (384, 1 << 15, "scripted")
            assert len(card.digest) == 64
            check = health_pb2_grpc.HealthStub(client.channel).Check
            for service in ("", "tollgate.engine.v1.Engine"):
                answer = await check(health_pb2.HealthCheckRequest(service=service), metadata=client.metadata)
                assert answer.status == health_pb2.HealthCheckResponse.SERVING

    run(story())


def test_calls_wait_for_a_starting_core(make_worker: StartWorker, run: Run) -> None:
    """Describe and Control that come before the core is ready are answered when it is."""
    worker = make_worker().start()
    wait_for(lambda: worker.events("listening"), "the socket")

    async def story() -> None:
        async with channel(worker.address) as client:
            card, hello = await asyncio.gather(client.describe(), client.control().read())
            assert card.num_blocks == BLOCKS
            assert hello.hello.block_bytes == BLOCK_BYTES

    run(story())


def test_share_groups_reach_core_and_controller(worker: WorkerProcess, run: Run) -> None:
    """Groups of a push are in force in the core, told in Hello without their secrets and in statistics."""
    group = pb.ShareGroup(name="g", namespace=b"s" * 32, kv_soft_bytes=3, kv_hard_bytes=4)
    group.prefixes.add(id="p", token_ids=range(40))

    async def story() -> None:
        async with channel(worker.address) as client:
            control = client.control()
            await control.push(pb.PolicyPush(version=1, snapshot=True, share_groups=[group]))
            stats = (await control.until(lambda event: len(event.stats.share_groups) == 1)).stats
            told = pb.ShareGroupStats(name="g", kv_bytes=3, kv_peak_bytes=4, num_prefixes=1, prefix_tokens=40)
            assert stats.share_groups[0] == told
            hello = (await client.control().read()).hello
            assert list(hello.share_groups) == [pb.ShareGroup(name="g", kv_soft_bytes=3, kv_hard_bytes=4)]
            control = client.control()
            await control.push(pb.PolicyPush(version=2, removed_share_groups=["g"]))
            await control.until(lambda event: event.stats.applied_version == 2 and not event.stats.share_groups)
            assert not (await client.control().read()).hello.share_groups

    run(story())


def test_share_group_that_cannot_be_in_force_ends_the_stream(worker: WorkerProcess, run: Run) -> None:
    """A push with a bad group is refused as a whole, and the policy before it stays."""

    async def story() -> None:
        async with channel(worker.address) as client:
            await client.use_policy(pb.PolicyPush(version=1, snapshot=True))
            control = client.control()
            bad = pb.ShareGroup(name="g", namespace=bytes(32), prefixes=[pb.SharedPrefix(id="p", token_ids=[9999])])
            tenant = pb.TenantPolicy(tenant="b", weight=1)
            await control.push(pb.PolicyPush(version=2, tenants=[tenant], share_groups=[bad]))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await control.until(lambda _event: False)
            assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
            assert "prefix p of share group g has a token id >= 384" in (caught.value.details() or "")
            hello = (await client.control().read()).hello
            assert (hello.applied_version, len(hello.grants), len(hello.share_groups)) == (1, 0, 0)

    run(story())


def test_policy_that_cannot_be_in_force_ends_the_stream(worker: WorkerProcess, run: Run) -> None:
    """A push that a core would ignore is refused aloud, and the policy before it stays."""

    async def story() -> None:
        async with channel(worker.address) as client:
            await client.use_policy(
                pb.PolicyPush(version=1, snapshot=True, tenants=[pb.TenantPolicy(tenant="a", weight=1)])
            )
            control = client.control()
            await control.push(pb.PolicyPush(version=2, snapshot=True, tenants=[pb.TenantPolicy(tenant="b", weight=0)]))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await control.until(lambda _event: False)
            assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
            assert "weight 0.0 of tenant b" in (caught.value.details() or "")
            hello = (await client.control().read()).hello
            assert (hello.applied_version, [grant.tenant for grant in hello.grants]) == (1, ["a"])

    run(story())
