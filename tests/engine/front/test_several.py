"""Several outputs and share groups over the whole worker, `python -m engine`, with a tiny random model."""

import os
import signal
from collections.abc import Sequence

import grpc
import pytest

from engine.protocol import pb
from tests.engine.front.client import POLICY, Client, GenerateStream, channel
from tests.engine.front.conftest import Run, StartWorker, Tokenize
from tests.engine.front.process import WorkerProcess, process_runs, wait_for
from tests.engine.front.test_worker import LONG, idle

SAMPLING = {"max_tokens": 24, "ignore_eos": True, "temperature": 1.0, "seed": 11}


async def outputs(stream: GenerateStream, number: int, count: int) -> list[list[int]]:
    """Read a request to its end and return the tokens of its outputs, each of which has ended once."""
    await stream.end(number)
    found = [stream.of_output(number, index) for index in range(count)]
    assert all(len(ends) == 1 for _, _, ends in found)
    return [token_ids for token_ids, _, _ in found]


def test_greedy_outputs_are_what_one_is(engine: WorkerProcess, run: Run, tokenize: Tokenize) -> None:
    """Three greedy outputs have the tokens of a single one; the prompt counts once, the outputs each."""
    prompt = tokenize("the tenant holds the block")

    async def story() -> None:
        async with channel(engine.address) as client:
            await client.use_policy()
            stream = client.generate()
            one = await stream.submit(prompt, sampling={"max_tokens": 20, "ignore_eos": True})
            await stream.end(one)
            three = await stream.submit(prompt, sampling={"max_tokens": 20, "ignore_eos": True}, n=3)
            assert await outputs(stream, three, 3) == [stream.token_ids(one)] * 3
            usage = stream.events[three][-1].finished.usage
            assert (usage.prompt_tokens, usage.completion_tokens) == (len(prompt), 60)
            await idle(client)

    run(story())


def test_stop_string_ends_one_output_of_several(engine: WorkerProcess, run: Run, tokenize: Tokenize) -> None:
    """A stop string that only some outputs run into ends those; the others are what they are without it."""
    prompt = tokenize("hello world")

    async def story() -> None:
        async with channel(engine.address) as client:
            await client.use_policy()
            stream = client.generate()
            whole = await stream.submit(prompt, sampling=SAMPLING, n=4)
            tokens = await outputs(stream, whole, 4)
            texts = [stream.of_output(whole, index)[1] for index in range(4)]
            stop = next(text[8:12] for text in texts if sum(text[8:12] in other for other in texts) == 1)
            cut = await stream.submit(prompt, sampling=SAMPLING, n=4, stop=[stop])
            for index, token_ids in enumerate(await outputs(stream, cut, 4)):
                _, text, (reason,) = stream.of_output(cut, index)
                assert text == texts[index].partition(stop)[0]
                assert token_ids == tokens[index][: len(token_ids)]
                assert reason == (pb.FINISH_REASON_STOP if stop in texts[index] else pb.FINISH_REASON_LENGTH)
            used = stream.events[cut][-1].finished.usage.completion_tokens
            assert used == len(stream.token_ids(cut)) < 4 * 24
            await idle(client)

    run(story())


def test_best_of_returns_some_of_what_was_sampled(engine: WorkerProcess, run: Run, tokenize: Tokenize) -> None:
    """Two of four seeded outputs come back, the same whichever number is asked for, and all four are counted."""
    prompt = tokenize("one two three")

    async def story() -> None:
        async with channel(engine.address) as client:
            await client.use_policy()
            stream = client.generate()
            all_four = await outputs(stream, await stream.submit(prompt, sampling=SAMPLING, n=4), 4)
            best = await stream.submit(prompt, sampling=SAMPLING, n=2, best_of=4)
            two = await outputs(stream, best, 2)
            assert all(token_ids in all_four for token_ids in two)
            assert two[0] != two[1]
            assert stream.events[best][-1].finished.usage.completion_tokens == 4 * 24
            three = await outputs(stream, await stream.submit(prompt, sampling=SAMPLING, n=3, best_of=4), 3)
            assert three[:2] == two
            await idle(client)

    run(story())


def test_beam_search_counts_every_beam(engine: WorkerProcess, run: Run, tokenize: Tokenize) -> None:
    """The outputs of a search are different and as long as asked for; each beam's tokens are counted in each step."""
    prompt = tokenize("a memory that is shared")

    async def story() -> None:
        async with channel(engine.address) as client:
            await client.use_policy()
            stream, search = client.generate(), pb.BeamSearch(width=4, length_penalty=1.0)
            sampling = {"max_tokens": 12, "ignore_eos": True}
            number = await stream.submit(prompt, sampling=sampling, n=3, beam_search=search)
            found = await outputs(stream, number, 3)
            assert len({tuple(token_ids) for token_ids in found}) == 3
            assert {len(token_ids) for token_ids in found} == {12}
            usage = stream.events[number][-1].finished.usage
            assert (usage.prompt_tokens, usage.completion_tokens) == (len(prompt), 4 * 12)
            await idle(client)

    run(story())


@pytest.mark.parametrize(
    "fields", [{"n": 4}, {"best_of": 4}, {"n": 2, "beam_search": pb.BeamSearch(width=4)}], ids=["n", "best_of", "beams"]
)
def test_client_that_leaves_frees_every_block(engine: WorkerProcess, run: Run, fields: dict[str, object]) -> None:
    """A broken connection ends all outputs: no request and no block is left, and there is one record."""
    request_id = f"left-{'-'.join(fields)}"

    async def story() -> None:
        async with channel(engine.address) as client:
            await client.use_policy()
            stream = client.generate()
            number = await stream.submit([1, 5, 9], request_id=request_id, sampling=LONG, **fields)
            while not stream.events[number]:
                await stream.read()
            stream.call.cancel()
            record = await client.control().usage(request_id)
            assert record.finish_reason == pb.FINISH_REASON_CANCELLED
            await idle(client)

    run(story())


def test_core_killed_with_several_outputs(make_worker: StartWorker, run: Run) -> None:
    """Each output and the request end with an error, and the ledger has what was told, once."""
    engine = make_worker(scripted=False).start().wait_ready()

    async def story() -> None:
        async with channel(engine.address) as client:
            await client.use_policy()
            stream = client.generate()
            number = await stream.submit([1, 5, 9], request_id="several", sampling=LONG, n=4)
            await stream.tokens(number, 40)
            os.kill(engine.core_pid, signal.SIGKILL)
            told = await outputs(stream, number, 4)
            assert stream.events[number][-1].finished.reason == pb.FINISH_REASON_ERROR
            control = client.control()
            record = await control.usage("several")
            assert record.completion_tokens == sum(map(len, told))
            assert len(control.deliveries) == 1
            engine.wait_ready(cores=2)
            again = await stream.submit([1, 5, 9], sampling={"max_tokens": 5, "ignore_eos": True}, n=2)
            assert [len(token_ids) for token_ids in await outputs(stream, again, 2)] == [5, 5]
            await idle(client)

    run(story())


def test_front_killed_with_several_outputs(make_worker: StartWorker, run: Run) -> None:
    """After a restart the request is closed once, with at least the tokens that its client has seen."""
    worker = make_worker(scripted=False).start().wait_ready()
    core = worker.core_pid
    seen = 0

    async def before() -> None:
        nonlocal seen
        async with channel(worker.address) as client:
            await client.use_policy()
            stream = client.generate()
            number = await stream.submit([1, 5, 9], request_id="cut", sampling=LONG, n=4)
            await stream.tokens(number, 40)
            worker.kill()
            with pytest.raises(grpc.aio.AioRpcError):
                await stream.end(number)
            seen = len(stream.token_ids(number))

    async def after(restarted: WorkerProcess) -> None:
        async with channel(restarted.address) as client:
            control = client.control()
            record = await control.usage("cut")
            assert 40 <= seen <= record.completion_tokens <= 4 * LONG["max_tokens"]
            assert (record.prompt_tokens, record.finish_reason) == (3, pb.FINISH_REASON_ERROR)
            assert len(control.deliveries) == 1

    run(before())
    wait_for(lambda: not process_runs(core), "the core to be gone")
    run(after(make_worker(scripted=False).start().wait_ready()))


async def cached(client: Client, tenant: str, prompt: Sequence[int]) -> int:
    """Return how many tokens of a tenant's prompt were there already."""
    stream = client.generate()
    namespace = tenant.encode().ljust(32, b"-")
    number = await stream.submit(prompt, tenant=tenant, namespace=namespace, sampling={"max_tokens": 1})
    tokens = (await stream.end(number)).finished.usage.cached_tokens
    stream.call.cancel()
    return tokens


def test_share_group_outlives_core_and_front(make_worker: StartWorker, run: Run) -> None:
    """Tenants of a group share its prefix and nobody else does, with the next core and after a restart too."""
    prefix = [20 + index % 200 for index in range(64)]
    tenants = []
    for name, groups in (("minnow", ["g"]), ("whale", ["g"]), ("stranger", [])):
        tenant = pb.TenantPolicy()
        tenant.CopyFrom(POLICY.tenants[0])
        tenant.tenant = name
        tenant.share_groups.extend(groups)
        tenants.append(tenant)
    group = pb.ShareGroup(name="g", namespace=b"g" * 32, kv_soft_bytes=4 << 20, kv_hard_bytes=4 << 20)
    group.prefixes.add(id="p", token_ids=prefix)

    async def shares(client: Client) -> None:
        assert await cached(client, "minnow", [*prefix, 7, 8]) == 0
        assert await cached(client, "whale", [*prefix, 9]) == 64
        assert await cached(client, "stranger", [*prefix, 9]) == 0

    async def story() -> None:
        async with channel(worker.address) as client:
            await client.use_policy(pb.PolicyPush(version=1, snapshot=True, tenants=tenants, share_groups=[group]))
            await shares(client)
            control = client.control()
            stats = (await control.until(lambda event: event.stats.share_groups)).stats
            assert (stats.share_groups[0].num_prefixes, stats.share_groups[0].prefix_tokens) == (1, 64)
            control.call.cancel()
            os.kill(worker.core_pid, signal.SIGKILL)
            worker.wait_ready(cores=2)
            await shares(client)

    async def after(restarted: WorkerProcess) -> None:
        async with channel(restarted.address) as client:
            hello = (await client.control().read()).hello
            assert [group.name for group in hello.share_groups] == ["g"]
            await shares(client)

    worker = make_worker(scripted=False).start().wait_ready()
    run(story())
    core = worker.core_pid
    worker.kill()
    wait_for(lambda: not process_runs(core), "the core to be gone")
    run(after(make_worker(scripted=False).start().wait_ready()))
