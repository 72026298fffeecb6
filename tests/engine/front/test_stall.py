"""A core that is alive and does nothing: it is found out, ended and replaced; one that works or loads is left alone."""

import os
import signal

from engine.protocol import pb
from tests.engine.front.client import channel
from tests.engine.front.conftest import Run, StartWorker
from tests.engine.front.process import process_runs
from tests.engine.front.scripted_core import COUNT, HANG


def test_frozen_core_is_replaced(make_worker: StartWorker, run: Run) -> None:
    """A core that freezes in mid-stream is killed after ENGINE_STALL_SECONDS: its streams end with an error that says
    why, usage counts what was streamed, and the next core serves.
    """
    worker = make_worker(ENGINE_STALL_SECONDS="1").start().wait_ready()
    frozen = worker.core_pid

    async def story() -> None:
        async with channel(worker.address) as client:
            stream, control = client.generate(), client.control()
            numbers = [await stream.submit([HANG, 5 + index], request_id=f"r{index}") for index in range(3)]
            for index, number in enumerate(numbers):
                await stream.tokens(number, 5 + index)
            os.kill(frozen, signal.SIGSTOP)
            for index, number in enumerate(numbers):
                finished = (await stream.end(number)).finished
                assert finished.reason == pb.FINISH_REASON_ERROR
                assert "no sign of life for 1 s" in finished.detail
                assert finished.usage.completion_tokens == len(stream.token_ids(number)) == 5 + index
                assert (await control.usage(f"r{index}")).completion_tokens == 5 + index
            assert not process_runs(frozen)
            worker.wait_ready(cores=2)
            assert (await stream.end(await stream.submit([COUNT, 6]))).finished.usage.completion_tokens == 6

    run(story())
    assert len(worker.events("core_stalled")) == 1


def test_idle_core_is_left_alone(make_worker: StartWorker, run: Run) -> None:
    """A core without work says that it lives: it is not ended for having nothing to do."""
    worker = make_worker(ENGINE_STALL_SECONDS="1").start().wait_ready()

    async def story() -> None:
        async with channel(worker.address) as client:
            control = client.control()
            first = (await control.until(lambda event: event.HasField("stats"))).stats.at
            await control.until(lambda event: event.stats.at > first + 2.5)

    run(story())
    assert len(worker.events("core_started")) == 1


def test_loading_may_take_long(make_worker: StartWorker) -> None:
    """The patience begins when a core is ready: loading a model may take longer."""
    worker = make_worker(ENGINE_STALL_SECONDS="1", SCRIPTED_LOADING_SECONDS="2.5").start().wait_ready()
    assert len(worker.events("core_started")) == 1
    assert not worker.events("core_stalled")


def test_core_that_ignores_its_front_is_killed_at_the_end(make_worker: StartWorker) -> None:
    """A worker that is told to stop does not wait for a frozen core, and leaves none behind."""
    worker = make_worker().start().wait_ready()
    frozen = worker.core_pid
    os.kill(frozen, signal.SIGSTOP)
    assert worker.terminate() == 0
    assert not process_runs(frozen)
    assert worker.events("core_did_not_stop")
