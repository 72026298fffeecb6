"""The loop: what comes in is in force in the next step, what it did goes out, and idle it sleeps."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest

from engine.errors import CoreError
from engine.loop import Applied, Cancel, Drain, EngineLoop, Message, Stop, Submit
from engine.policy import PolicyUpdate, TenantPolicy
from engine.request import FinishReason, GenerationRequest, RefusalCode, RequestId, SamplingParams, SequenceId, TenantId
from engine.scheduler.outputs import RequestOutput
from engine.stats import EngineStats
from engine.step import StepHandle, StepPlan, StepResult
from tests.engine.world import World

MINNOW = TenantId("minnow")


class Box:
    """A mailbox of lists; each `receive` takes one batch, and sleeping turns the world's clock."""

    def __init__(self, world: World) -> None:
        self.inbox: deque[list[Message]] = deque()
        self.patience: list[float | None] = []
        self.sent: list[tuple[int, list[RequestOutput]]] = []
        self.acks: list[tuple[int, int, int]] = []
        self.applies: list[Applied] = []
        self.settles: list[tuple[int, int]] = []
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

    def applied(self, applied: Applied) -> None:
        """Keep an ack."""
        self.applies.append(applied)
        self.acks.append((applied.version, applied.epoch, applied.step))

    def settled(self, version: int, epoch: int) -> None:
        """Keep that a policy has settled."""
        assert self.applies, "settled before it was applied"
        self.settles.append((version, epoch))

    def stats(self, stats: EngineStats) -> None:
        """Keep counters."""
        self.counters.append(stats)


def make_loop(*, ahead: bool = False, **options: int) -> tuple[World, Box, EngineLoop]:
    """Return a loop over the fake runner."""
    world = World(ahead=ahead, **options)
    box = Box(world)
    return world, box, EngineLoop(world.scheduler, world.runner, box, ahead=ahead, clock=lambda: world.now)


class Diary:
    """The fake runner, with a note of each launch and wait."""

    def __init__(self, world: World) -> None:
        self.notes: list[tuple[str, int]] = []
        self.plans: list[StepPlan] = []
        self.broken = 0  # number of the step that fails
        self.shape, self.runs_ahead = world.runner.shape, world.runner.runs_ahead
        self._runner = world.runner

    def launch(self, plan: StepPlan) -> StepHandle:
        """Launch and note."""
        self.notes.append(("launch", plan.number))
        self.plans.append(plan)
        handle, diary = self._runner.launch(plan), self

        class Noted:
            def wait(self) -> StepResult:
                diary.notes.append(("wait", plan.number))
                if plan.number == diary.broken:
                    raise CoreError("the device is gone")
                return handle.wait()

        return Noted()


def make_noted_loop() -> tuple[World, Box, Diary, EngineLoop]:
    """Return a loop that plans ahead, with a diary."""
    world = World(ahead=True)
    box, diary = Box(world), Diary(world)
    return world, box, diary, EngineLoop(world.scheduler, diary, box, ahead=True, clock=lambda: world.now)


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


@pytest.mark.parametrize("ahead", [False, True])
def test_runs_a_request_to_its_end(ahead: bool) -> None:
    """One batch of messages, then a frame of outputs per step until the request has ended."""
    _, box, loop = make_loop(ahead=ahead)
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


@pytest.mark.parametrize("ahead", [False, True])
def test_cancel_is_in_force_in_the_next_step(ahead: bool) -> None:
    """A request that is cancelled while a step runs is not in the step after it."""
    world, box, loop = make_loop(ahead=ahead)
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


@pytest.mark.parametrize("ahead", [False, True])
def test_drains_and_stops(ahead: bool) -> None:
    """Drained, new requests are refused; a Stop ends the run."""
    _, box, loop = make_loop(ahead=ahead)
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


@pytest.mark.parametrize("ahead", [False, True])
def test_counters_tell_of_blocks_tenants_and_peaks(ahead: bool) -> None:
    """What a request held at its height is in the counters after its end; what it holds now is not."""
    world, box, loop = make_loop(ahead=ahead)
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


def test_launches_a_step_before_it_waits_for_the_one_before_it() -> None:
    """The device has its next work when it is done; the step that is known to be the last is waited for at once."""
    world, box, diary, loop = make_noted_loop()
    box.inbox.append([policy(), submit(1)])
    for _ in range(6):
        loop.step()
    assert diary.notes == [
        ("launch", 1),
        ("launch", 2),
        ("wait", 1),
        ("launch", 3),
        ("wait", 2),
        ("launch", 4),
        ("wait", 3),
        ("wait", 4),
    ]
    assert [step for step, _ in box.sent] == [1, 2, 3, 4]
    tokens = [token for _, outputs in box.sent for output in outputs for token in output.token_ids]
    assert len(tokens) == 4
    world.assert_empty()


def test_does_not_sleep_while_a_step_is_in_flight() -> None:
    """Neither when the next one has been launched nor when there is none to launch; with nothing left it does."""
    world, box, _, loop = make_noted_loop()
    box.inbox.append([policy(), submit(1, max_tokens=3)])
    for _ in range(4):
        loop.step()
    assert box.sent[-1][1][0].finish_reason is FinishReason.LENGTH
    assert box.patience[1:] == [0.0] * (len(box.patience) - 1)
    loop.step()
    loop.step()
    assert box.patience[-2] == 0.0
    assert box.patience[-1] == pytest.approx(0.25, abs=0.25)
    assert not world.scheduler.roster.sequences


def test_an_ack_names_a_step_that_was_planned_under_the_policy() -> None:
    """Not the one in flight, which was planned before; with nothing to plan, the next one."""
    world, box, diary, loop = make_noted_loop()
    box.inbox += [[policy(5), submit(1, max_tokens=60)], [], [policy(6, hard=300)], [policy(7, hard=100)], []]
    for _ in range(3):
        loop.step()
    assert box.acks == [(5, 3, 1), (6, 3, 3)]
    assert diary.notes[-1] == ("wait", 2), "the third was planned while the second ran"
    assert world.held("minnow") <= 3
    loop.step()
    assert box.acks[-1] == (7, 3, 4)
    assert len(diary.plans) == 3, "nothing fits any more"
    assert world.held("minnow") == 0


def test_what_is_in_flight_is_reported_before_the_end() -> None:
    """A stop and a signal lose no token that was computed."""
    for stop_by_message in (True, False):
        world, box, diary, loop = make_noted_loop()
        box.inbox += [[policy(), submit(1, max_tokens=60)], []]
        for _ in range(3):
            loop.step()
        if stop_by_message:
            box.inbox.append([Stop()])
        else:
            loop.stop()
        loop.run()
        assert sorted(number for what, number in diary.notes if what == "wait") == [one.number for one in diary.plans]
        assert box.sent[-1][0] == diary.plans[-1].number
        sampled = sum(part.sampling is not None for plan in diary.plans for part in plan.sequences)
        assert sum(len(output.token_ids) for _, outputs in box.sent for output in outputs) == sampled
        world.scheduler.audit()


def test_a_step_that_fails_while_another_is_in_flight_ends_the_loop() -> None:
    """The exception comes out of the wait; nothing of that step or the one behind it is reported."""
    _, box, diary, loop = make_noted_loop()
    diary.broken = 3
    box.inbox.append([policy(), submit(1, max_tokens=60)])
    with pytest.raises(CoreError):
        loop.run()
    assert diary.notes[-2:] == [("launch", 4), ("wait", 3)]
    assert [step for step, _ in box.sent] == [1, 2]


def test_refusals_do_not_wait_for_a_step() -> None:
    """The first step is launched and not yet waited for: what there is to say meanwhile is said."""
    _, box, diary, loop = make_noted_loop()
    box.inbox.append([policy(), submit(1), submit(2, prompt=500)])
    loop.step()
    assert diary.notes == [("launch", 1)]
    assert [output.sequence for _, outputs in box.sent for output in outputs] == [2]


@pytest.mark.parametrize("ahead", [False, True])
def test_a_policy_settles_after_it_was_applied(ahead: bool) -> None:
    """At once where nobody is above a limit, and each version once; with the overage and a time where somebody is."""
    world, box, loop = make_loop(ahead=ahead)
    box.inbox += [[policy()], [submit(1, max_tokens=20, prompt=20)], [], []]
    for _ in range(4):
        loop.step()
    assert (box.applies[0].over_bytes, box.applies[0].settle_seconds) == (0, 0.0)
    account = world.scheduler.memory.accounts.get(MINNOW)
    assert account is not None
    over_bytes = (account.blocks - 4) * 100
    box.inbox.append([policy(version=2, hard=400)])
    loop.step()
    assert box.applies[1].over_bytes == over_bytes > 0
    assert box.applies[1].settle_seconds > 0
    assert box.settles == [(1, 3), (2, 3)]
    box.inbox.append([policy(version=2, hard=400)])
    loop.step()
    assert [one.version for one in box.applies] == [1, 2, 2]
    assert box.settles == [(1, 3), (2, 3)]


@pytest.mark.parametrize("ahead", [False, True])
def test_an_idle_loop_does_not_sleep_over_what_is_to_be_given_back(ahead: bool) -> None:
    """With nothing to run, a large cache goes bit by bit without a pause, and then it says so."""
    world, box, loop = make_loop(ahead=ahead, blocks_a_plan=2)
    request = replace(submit(1, max_tokens=20, prompt=20).request, namespace=b"secret")
    box.inbox += [[policy()], [Submit(SequenceId(1), request)]]
    for _ in range(30):
        loop.step()
    assert world.cached("minnow") > 6
    num_naps = len(box.patience)
    box.inbox.append([policy(version=2, hard=0)])
    for _ in range(5):
        loop.step()
    assert world.cached("minnow") == 0
    assert box.settles == [(1, 3), (2, 3)]
    assert not any(box.patience[num_naps + 1 :])  # the first one found the policy


def test_an_idle_loop_ends_its_copies_and_then_sleeps() -> None:
    """While something is copied it looks every moment; then not before the next counters are due."""
    world, box, loop = make_loop(num_slabs=16)
    whole = policy()
    box.inbox.append([replace(whole, tenants=(replace(whole.tenants[0], host_bytes=1600),)), submit(1, prompt=20)])
    box.inbox[0][1] = replace(box.inbox[0][1], request=replace(box.inbox[0][1].request, namespace=b"its own"))  # type: ignore[union-attr]
    while not (box.sent and box.sent[-1][1][-1].finish_reason):
        loop.step()
    memory = world.scheduler.memory
    memory.tiers.park([memory.tree.key(block) for block in memory.tree.blocks()])
    loop.step()
    assert memory.mover.is_moving
    while memory.mover.has_work:
        loop.step()
        assert box.patience[-1] is not None
        assert box.patience[-1] < 0.0011
    assert memory.host.num_used == 5
    loop.step()
    loop.step()
    assert box.patience[-1] is not None
    assert box.patience[-1] > 0.1
