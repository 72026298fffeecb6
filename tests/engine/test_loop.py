"""The loop: what comes in is in force in the next step, what it did goes out, and idle it sleeps."""

from collections import deque
from collections.abc import Iterable, Sequence

import pytest

from engine.errors import CoreError
from engine.loop import Cancel, Drain, EngineLoop, Message, Stop, Submit
from engine.policy import PolicyUpdate, TenantPolicy
from engine.request import FinishReason, GenerationRequest, RefusalCode, RequestId, SamplingParams, SequenceId, TenantId
from engine.scheduler.outputs import RequestOutput
from engine.stats import EngineStats
from engine.step import StepHandle, StepPlan
from tests.engine.world import World

MINNOW = TenantId("minnow")


class Box:
    """A mailbox of lists; each `receive` takes one batch, and sleeping turns the world's clock."""

    def __init__(self, world: World) -> None:
        self.inbox: deque[list[Message]] = deque()
        self.patience: list[float | None] = []
        self.sent: list[tuple[int, list[RequestOutput]]] = []
        self.acks: list[tuple[int, int, int]] = []
        self.counters: list[EngineStats] = []
        self._world = world

    def receive(self, timeout: float | None) -> Iterable[Message]:
        """Return the next batch at once, or let the time pass."""
        self.patience.append(timeout)
        if self.inbox:
            return self.inbox.popleft()
        self._world.now += timeout or 0.0
        return []

    def outputs(self, step: int, outputs: Sequence[RequestOutput]) -> None:
        """Keep outputs."""
        self.sent.append((step, list(outputs)))

    def applied(self, version: int, epoch: int, step: int) -> None:
        """Keep an ack."""
        self.acks.append((version, epoch, step))

    def stats(self, stats: EngineStats) -> None:
        """Keep counters."""
        self.counters.append(stats)


def make_loop() -> tuple[World, Box, EngineLoop]:
    """Return a loop over the fake runner."""
    world = World()
    box = Box(world)
    return world, box, EngineLoop(world.scheduler, world.runner, box, clock=lambda: world.now)


def policy(version: int = 1, hard: int = 6400) -> PolicyUpdate:
    """Return a snapshot for one tenant."""
    minnow = TenantPolicy(
        tenant=MINNOW,
        kv_hard_bytes=hard,
        max_running=4,
        max_queued=4,
        max_context_tokens=256,
        max_output_tokens=256,
    )
    return PolicyUpdate(version=version, epoch=3, snapshot=True, tenants=(minnow,))


def submit(number: int, max_tokens: int = 4, prompt: int = 6) -> Submit:
    """Return a request."""
    request = GenerationRequest(
        request_id=RequestId(str(number)),
        tenant=MINNOW,
        namespace=b"",
        prompt=[1] * prompt,
        sampling=SamplingParams(max_tokens=max_tokens),
        arrived_at=100.0,
    )
    return Submit(SequenceId(number), request)


def test_runs_a_request_to_its_end() -> None:
    """One batch of messages, then a frame of outputs per step until the request has ended."""
    _, box, loop = make_loop()
    box.inbox.append([policy(), submit(1)])
    for _ in range(6):
        loop.step()
    assert [step for step, _ in box.sent] == [1, 2, 3, 4]
    assert box.sent[0][1][0].admitted_max_tokens == 4
    assert box.sent[-1][1][0].finish_reason is FinishReason.LENGTH


def test_acks_a_policy_with_the_step_that_takes_it_up() -> None:
    """The ack comes after the plan that enforces the policy; an older policy is answered with the one in force."""
    world, box, loop = make_loop()
    box.inbox += [[policy(5), submit(1, max_tokens=60)], [], [policy(6, hard=300)], [policy(4)]]
    for _ in range(4):
        loop.step()
    assert box.acks == [(5, 3, 1), (6, 3, 3), (6, 3, 4)]
    assert world.held("minnow") <= 3


def test_cancel_is_in_force_in_the_next_step() -> None:
    """A request that is cancelled while a step runs is not in the step after it."""
    world, box, loop = make_loop()
    cancel = Cancel((SequenceId(1),), FinishReason.CANCELLED)
    box.inbox += [[policy(), submit(1, 60), submit(2, 60)], [], [cancel]]
    for _ in range(3):
        loop.step()
    assert [one.id for one in world.scheduler.roster.running] == [2]
    ended = [output for _, outputs in box.sent for output in outputs if output.finish_reason]
    assert [(output.sequence, output.finish_reason) for output in ended] == [(1, FinishReason.CANCELLED)]


def test_sleeps_until_the_next_thing_to_do() -> None:
    """Busy, it does not wait; idle, it waits for counters or timers, and counters go out four times a second."""
    world, box, loop = make_loop()
    start = world.now
    for _ in range(9):
        loop.step()
    assert all(patience is not None and 0 <= patience <= 0.25 for patience in box.patience)
    assert len(box.counters) == pytest.approx((world.now - start) * 4, abs=1)
    box.inbox.append([policy(), submit(1, max_tokens=3)])
    box.patience.clear()
    for _ in range(4):
        loop.step()
    assert box.patience[1:] == [0.0, 0.0, 0.0]


def test_an_ignored_submit_ends_nobody_elses_request() -> None:
    """A handle that is used twice is the front's mistake; the first request goes on."""
    _, box, loop = make_loop()
    box.inbox += [[policy(), submit(1)], [submit(1)]]
    for _ in range(5):
        loop.step()
    assert box.sent[-1][1][0].finish_reason is FinishReason.LENGTH


def test_drains_and_stops() -> None:
    """Drained, new requests are refused; a Stop ends the run."""
    _, box, loop = make_loop()
    box.inbox += [[policy(), Drain(True), submit(1)], [Stop()]]
    loop.run()
    refusal = box.sent[0][1][0].refusal
    assert refusal is not None
    assert refusal.code is RefusalCode.DRAINING


def test_a_failing_step_ends_the_loop() -> None:
    """The runner's exception is nobody's to swallow: the process ends and a new core starts."""

    class Broken:
        shape = World().shape
        runs_ahead = False

        def launch(self, plan: StepPlan) -> StepHandle:
            raise CoreError("no such device")

    world = World()
    box = Box(world)
    box.inbox.append([policy(), submit(1)])
    with pytest.raises(CoreError):
        EngineLoop(world.scheduler, Broken(), box, clock=lambda: world.now).run()


def test_counters_tell_of_blocks_tenants_and_peaks() -> None:
    """What a request held at its height is in the counters after its end; what it holds now is not."""
    world, box, loop = make_loop()
    box.inbox.append([policy(), submit(1, max_tokens=10, prompt=10)])
    loop.step()
    while world.scheduler.roster.sequences:
        loop.step()
    box.counters.clear()
    while not box.counters:
        loop.step()
    stats = box.counters[0]
    assert (stats.blocks_total, stats.blocks_free, stats.running, stats.queued) == (64, 64, 0, 0)
    assert (stats.prompt_tokens, stats.output_tokens) == (10, 10)
    use = stats.tenants[0]
    assert (use.tenant, use.kv_bytes, use.kv_peak_bytes, use.output_tokens) == (MINNOW, 0, 500, 10)
