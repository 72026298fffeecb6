"""The whole worker, `python -m engine`: real front, real core, a tiny random model."""

import asyncio
import os
import random
import signal
import time
from pathlib import Path

import grpc
import pytest

from engine.protocol import pb
from tests.engine.front.client import Client, channel
from tests.engine.front.conftest import Run, StartWorker, Tokenize
from tests.engine.front.process import WorkerProcess, process_runs, wait_for

LONG = {"max_tokens": 15_000, "ignore_eos": True}  # a quarter of a minute: it is cut off long before its end


async def idle(client: Client) -> pb.Stats:
    """Return the first statistics that show no request and no block in use."""
    control = client.control()
    event = await control.until(
        lambda event: (
            event.HasField("stats")
            and event.stats.running + event.stats.queued == 0
            and event.stats.blocks_open + event.stats.blocks_sealed == 0 < event.stats.blocks_total
        )
    )
    control.call.cancel()
    return event.stats


def test_requests_side_by_side_give_what_they_give_alone(engine: WorkerProcess, run: Run, tokenize: Tokenize) -> None:
    """Greedy outputs do not depend on batch mates; text is the decoding of the tokens; usage counts both."""
    prompts = [tokenize(f"the tenant holds {index} blocks") for index in range(12)]

    async def story() -> None:
        async with channel(engine.address) as client:
            await client.use_policy()
            stream = client.generate()
            sampling = {"max_tokens": 24, "ignore_eos": True}
            alone = []
            for prompt in prompts:
                number = await stream.submit(prompt, sampling=sampling)
                await stream.end(number)
                alone.append(stream.token_ids(number))
            together = [await stream.submit(prompt, sampling=sampling) for prompt in prompts]
            for number, prompt, expected in zip(together, prompts, alone, strict=True):
                usage = (await stream.end(number)).finished.usage
                assert stream.token_ids(number) == expected
                assert (usage.prompt_tokens, usage.completion_tokens) == (len(prompt), 24)
            await idle(client)

    run(story())


def test_stop_string_of_a_real_output(engine: WorkerProcess, run: Run, tokenize: Tokenize) -> None:
    """A part of an output, given as a stop string, ends the same output before it."""

    async def story() -> None:
        async with channel(engine.address) as client:
            await client.use_policy()
            stream = client.generate()
            prompt, sampling = tokenize("hello world"), {"max_tokens": 60, "ignore_eos": True}
            whole = await stream.submit(prompt, sampling=sampling)
            await stream.end(whole)
            text = stream.text(whole)
            stop = text[len(text) // 2 : len(text) // 2 + 3]
            cut = await stream.submit(prompt, sampling=sampling, stop=[stop])
            end = await stream.end(cut)
            assert end.finished.reason == pb.FINISH_REASON_STOP
            assert stream.text(cut) == text[: text.index(stop)]
            assert end.finished.usage.completion_tokens == len(stream.token_ids(cut)) < 60
            await idle(client)

    run(story())


def test_request_without_a_policy_is_refused(engine: WorkerProcess, run: Run) -> None:
    """A tenant of whom the worker knows no policy is refused, and one with a policy is served."""

    async def story() -> None:
        async with channel(engine.address) as client:
            await client.use_policy()
            stream = client.generate()
            stranger = await stream.submit([1, 2, 3], tenant="stranger", deadline=time.time() + 0.2)
            assert (await stream.end(stranger)).refused.code == pb.REFUSAL_CODE_NO_POLICY
            known = await stream.submit([1, 2, 3], sampling={"max_tokens": 2, "ignore_eos": True})
            assert (await stream.end(known)).finished.usage.completion_tokens == 2

    run(story())


def test_core_killed_in_mid_stream(make_worker: StartWorker, run: Run) -> None:
    """Streams end with an error and exact usage, the core comes back with its policy, the next request works."""
    engine = make_worker(scripted=False).start().wait_ready()

    async def kill(client: Client, cores: int) -> bool:
        """Kill the core under four requests; return whether any of them was still under way: it is quick."""
        stream, control = client.generate(), client.control()
        names = [f"long-{cores}-{index}" for index in range(4)]
        numbers = [await stream.submit([1, 5, 9], request_id=name, sampling=LONG) for name in names]
        for number in numbers:
            await stream.tokens(number, 1)
        os.kill(engine.core_pid, signal.SIGKILL)
        reasons = set()
        for name, number in zip(names, numbers, strict=True):
            end = await stream.end(number)
            record = await control.usage(name)
            counts = {len(stream.token_ids(number)), end.finished.usage.completion_tokens, record.completion_tokens}
            assert len(counts) == 1
            reasons.add(end.finished.reason)
        control.call.cancel()
        engine.wait_ready(cores=cores + 1)
        assert reasons <= {pb.FINISH_REASON_ERROR, pb.FINISH_REASON_LENGTH}
        return pb.FINISH_REASON_ERROR in reasons

    async def story() -> None:
        async with channel(engine.address) as client:
            await client.use_policy()
            cores = 1
            while not await kill(client, cores):
                cores += 1
            stream = client.generate()
            again = await stream.submit([1, 5, 9], sampling={"max_tokens": 5, "ignore_eos": True})
            assert (await stream.end(again)).finished.usage.completion_tokens == 5
            await idle(client)

    run(story())


def test_front_killed_in_mid_stream(make_worker: StartWorker, run: Run) -> None:
    """The core dies with the front; after a restart usage is closed with at least what the client has seen, once."""
    worker = make_worker(scripted=False).start().wait_ready()
    core = worker.core_pid
    seen = 0

    async def before() -> None:
        nonlocal seen
        async with channel(worker.address) as client:
            await client.use_policy()
            stream = client.generate()
            number = await stream.submit([1, 5, 9], request_id="cut", sampling=LONG)
            await stream.tokens(number, 20)
            worker.kill()
            with pytest.raises(grpc.aio.AioRpcError):
                await stream.end(number)
            seen = len(stream.token_ids(number))

    async def after(restarted: WorkerProcess) -> None:
        async with channel(restarted.address) as client:
            control = client.control()
            record = await control.usage("cut")
            # Above `seen` by what had left the front's hands and was still in its buffers when it died.
            assert seen <= record.completion_tokens <= LONG["max_tokens"]
            assert (record.prompt_tokens, record.finish_reason) == (3, pb.FINISH_REASON_ERROR)
            stream = client.generate()
            number = await stream.submit([1, 5, 9], sampling={"max_tokens": 4, "ignore_eos": True})
            assert (await stream.end(number)).finished.usage.completion_tokens == 4
            assert len(control.deliveries) == 1

    run(before())
    wait_for(lambda: not process_runs(core), "the core to be gone")
    run(after(make_worker(scripted=False).start().wait_ready()))


def test_disconnects_leave_no_block(engine: WorkerProcess, run: Run, tokenize: Tokenize) -> None:
    """After 200 abrupt disconnects in random phases the worker holds no request and no block."""
    choose = random.Random(3)
    prompts = [tokenize("one two three " * count) for count in (1, 10, 80)]

    async def disconnect(client: Client) -> None:
        stream = client.generate()
        number = await stream.submit(choose.choice(prompts), sampling=LONG)
        waited = choose.randrange(4)
        if waited:
            reading = asyncio.create_task(stream.tokens(number, waited - 1))
            await asyncio.wait({reading}, timeout=choose.random() / 20)
            reading.cancel()
            await asyncio.wait({reading})
        stream.call.cancel()

    async def story() -> None:
        async with channel(engine.address) as client:
            await client.use_policy()
            for _ in range(10):
                await asyncio.gather(*(disconnect(client) for _ in range(20)))
            await idle(client)

    run(story())


def test_many_streams_keep_pace(make_worker: StartWorker, run: Run) -> None:
    """Thirty-two streams at sixty steps a second pass the front with far less than its one CPU."""
    worker = make_worker(SCRIPTED_STEP_MS="16").start().wait_ready()

    async def story() -> None:
        async with channel(worker.address) as client:
            stream = client.generate()
            numbers = [await stream.submit([2, 180]) for _ in range(32)]
            await stream.tokens(numbers[0], 1)
            before, started = cpu_seconds(worker.pid), time.monotonic()
            for number in numbers:
                await stream.end(number)
            used, wall = cpu_seconds(worker.pid) - before, time.monotonic() - started
            assert used < 0.5 * wall

    run(story())


def cpu_seconds(pid: int) -> float:
    """CPU time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
