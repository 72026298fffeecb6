"""The chunk budget against synthetic machines: targets are kept, the budget is used, and nothing is ever absurd."""

from dataclasses import dataclass
from random import Random

import pytest

from engine.scheduler.chunks import ChunkBudget
from engine.scheduler.step_time import StepTimeModel, StepWork, chunk_pairs

MINIMUM, MAXIMUM = 16, 2048


@dataclass(frozen=True)
class Machine:
    """Seconds of a step, of each decode, chunk token, token of context and chunk pair."""

    step: float
    decode: float
    token: float
    context: float
    pair: float

    def seconds(self, work: StepWork) -> float:
        """Return the time of a step, without noise."""
        return (
            self.step
            + self.decode * work.num_decodes
            + self.token * work.prefill_tokens
            + self.context * work.context_tokens
            + self.pair * work.prefill_pairs
        )

    def target(self) -> float:
        """Return an inter-token target that leaves a busy step room for some hundred tokens."""
        return 2 * self.step + 64 * self.decode + 64_000 * self.context + 300 * self.token


MACHINES = {
    "cpu": Machine(0.004, 6e-4, 4e-4, 2e-8, 4e-9),
    "gpu": Machine(0.006, 2e-5, 2e-5, 5e-9, 1e-11),
    "attention": Machine(0.002, 1e-4, 5e-5, 3e-7, 6e-8),
    "flat": Machine(0.01, 0.0, 1e-4, 0.0, 0.0),
}


class Run:
    """Drives a budget through random steps of a machine."""

    def __init__(self, machine: Machine, *, noise: float = 0.05, pauses: float = 0.01) -> None:
        self.random = Random()
        self.machine = machine
        self.budget = ChunkBudget(minimum=MINIMUM, maximum=MAXIMUM)
        self.over: list[bool] = []  # for each step with a sized chunk: was it over the target without noise?
        self.use: list[float] = []  # and which part of the target it took
        self._noise = noise
        self._pauses = pauses

    def steps(self, count: int, *, slowdown: float = 1.0, prefill: float = 0.6) -> None:
        """Run steps; every hundredth or so is paused to many times its length."""
        random, target = self.random, self.machine.target()
        self.over, self.use = [], []
        for _ in range(count):
            decodes = random.randint(0, 128)
            context, start = decodes * random.randint(200, 1500), random.randint(0, 4000)
            chunk = self.budget.tokens(decodes, context, target, start) if random.random() < prefill else 0
            work = StepWork(decodes, context, chunk, chunk_pairs(start, chunk))
            seconds = slowdown * self.machine.seconds(work)
            if decodes and chunk > MINIMUM:
                self.over.append(seconds > target)
                self.use.append(seconds / target)
            pause = random.choice((5, 30, 100)) if random.random() < self._pauses else 1
            self.budget.observe(work, max(1e-7, seconds * pause * random.gauss(1, self._noise)))

    def share_over(self) -> float:
        """Return how many of the sized steps were over the target."""
        return sum(self.over) / len(self.over)

    def mean_use(self) -> float:
        """Return how much of the target they took."""
        return sum(self.use) / len(self.use)


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_the_target_is_kept_and_used(machine: Machine) -> None:
    """After a few steps hardly any is over the target, and they take most of it; pauses change nothing."""
    run = Run(machine)
    run.steps(150)
    run.steps(400)
    assert run.share_over() < 0.1
    assert run.mean_use() > 0.6


def test_noise_widens_the_distance_to_the_target() -> None:
    """On a machine whose steps scatter by a fifth, the target is still kept, at the price of smaller chunks."""
    run = Run(MACHINES["cpu"], noise=0.2, pauses=0.03)
    run.steps(200)
    run.steps(400)
    assert run.share_over() < 0.05
    assert run.mean_use() > 0.5


def test_a_machine_out_of_control_still_computes_prompts() -> None:
    """Where others' work makes steps scatter wildly, at most half of the target is left unused."""
    run = Run(MACHINES["cpu"])
    run.steps(300)
    target = run.machine.target()
    for _ in range(60):
        run.steps(5, slowdown=run.random.choice((0.2, 5.0)))
    model = run.budget.model
    assert model.spread > 0.5
    tokens = run.budget.tokens(64, 64_000, target)
    assert MINIMUM < tokens < MAXIMUM
    assert model.predict(StepWork(64, 64_000, tokens + 1, chunk_pairs(0, tokens + 1))) > 0.99 * target / 2


def test_a_machine_that_becomes_slower_is_followed() -> None:
    """When all steps take three times as long from now on, the budget fits again after 200 steps."""
    run = Run(MACHINES["cpu"])
    run.steps(200)
    run.steps(200, slowdown=3)
    run.steps(200, slowdown=3)
    assert sum(run.over) <= 20  # of 200
    run.steps(250)
    run.steps(200)
    assert run.share_over() < 0.05
    assert run.mean_use() > 0.7


def test_an_hour_of_decodes_does_not_wash_out_what_chunks_cost() -> None:
    """After thousands of steps without a chunk the first one is sized as well as before."""
    run = Run(MACHINES["cpu"])
    run.steps(300)
    run.steps(3000, prefill=0.0)
    run.steps(150)
    assert run.share_over() < 0.2  # of some 90
    assert run.mean_use() > 0.75


def test_one_pause_costs_next_to_nothing() -> None:
    """A step that took a hundred times as long moves the budget by less than a third."""
    run = Run(MACHINES["cpu"], pauses=0.0)
    run.steps(300)
    before = run.budget.tokens(64, 64_000, run.machine.target())
    work = StepWork(64, 64_000)
    run.budget.observe(work, 100 * run.machine.seconds(work))
    assert run.budget.tokens(64, 64_000, run.machine.target()) > 0.67 * before


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_the_budget_is_monotone_and_bounded(machine: Machine) -> None:
    """More decodes, more context or a later chunk never give more tokens, a longer target never fewer."""
    run = Run(machine)
    random = run.random
    for _ in range(20):
        run.steps(random.randint(1, 15))
        for _ in range(20):
            decodes, context, start = random.randint(1, 256), random.randint(1, 10**6), random.randint(0, 10**5)
            target = machine.target() * random.uniform(0.01, 20)
            tokens = run.budget.tokens(decodes, context, target, start)
            assert MINIMUM <= tokens <= MAXIMUM
            assert run.budget.tokens(decodes + random.randint(0, 50), context, target, start) <= tokens
            assert run.budget.tokens(decodes, context + random.randint(0, 10**5), target, start) <= tokens
            assert run.budget.tokens(decodes, context, target, start + random.randint(0, 10**4)) <= tokens
            assert run.budget.tokens(decodes, context, target * random.uniform(1, 2), start) >= tokens


def test_the_predicted_step_keeps_within_the_target() -> None:
    """The chunk is the largest that the model itself predicts to fit, with its distance."""
    run = Run(MACHINES["attention"])
    run.steps(100)
    model, target = run.budget.model, run.machine.target()

    def predicted(tokens: int) -> float:
        return model.predict(StepWork(32, 30_000, tokens, chunk_pairs(1000, tokens))) * (1 + 2 * model.spread)

    tokens = run.budget.tokens(32, 30_000, target, 1000)
    assert MINIMUM < tokens < MAXIMUM
    assert predicted(tokens) <= target * 1.001
    assert predicted(tokens + 2) > target


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_time_that_cannot_be_is_ignored(seconds: float) -> None:
    """A clock that was set back teaches nothing."""
    model = StepTimeModel()
    model.observe(StepWork(3, 100), 0.01)
    before = (model.weights, model.num_observed)
    model.observe(StepWork(3, 100), seconds)
    assert (model.weights, model.num_observed) == before


@pytest.mark.parametrize("target", [0.0, -1.0, float("inf")])
def test_without_a_target_the_maximum_is_free(target: float) -> None:
    """No target, and the whole budget goes to prefill."""
    run = Run(MACHINES["cpu"])
    run.steps(50)
    assert run.budget.tokens(64, 64_000, target) == MAXIMUM
    assert run.budget.tokens(0, 0, target) == MAXIMUM


def test_a_step_without_decodes_has_a_target_too() -> None:
    """Who comes in the middle of a step waits for its end: where that is bounded, a prompt alone is cut up as well."""
    run = Run(MACHINES["cpu"])
    run.steps(100)
    target = 0.05
    tokens = run.budget.tokens(0, 0, target)
    assert MINIMUM < tokens < MAXIMUM
    assert run.machine.seconds(StepWork(0, 0, tokens, chunk_pairs(0, tokens))) <= 1.1 * target


def test_before_anything_was_measured_the_maximum_is_free() -> None:
    """The first step cannot be sized; it is the one that measures."""
    assert ChunkBudget(minimum=1, maximum=99).tokens(5, 100, 1e-9) == 99


def test_a_hopeless_target_leaves_the_minimum() -> None:
    """Where the decodes alone are over the target, prefill still makes progress."""
    run = Run(MACHINES["cpu"])
    run.steps(50)
    assert run.budget.tokens(64, 64_000, 1e-6) == MINIMUM


def test_weights_never_turn_negative() -> None:
    """Whatever times come, more work is never predicted to take less time."""
    random, model = Random(), StepTimeModel()
    for _ in range(500):
        decodes, chunk = random.randint(0, 64), random.choice((0, 0, 7, 512))
        model.observe(StepWork(decodes, decodes * 300, chunk, chunk_pairs(50, chunk)), 10 ** random.uniform(-6, 1))
        assert min(model.weights) >= 0.0
        assert model.predict(StepWork(1, 1)) < float("inf")


@pytest.mark.parametrize(("minimum", "maximum"), [(0, 5), (6, 5), (-1, -1)])
def test_a_budget_without_room_is_refused(minimum: int, maximum: int) -> None:
    """The minimum is at least one token and at most the maximum."""
    with pytest.raises(ValueError, match="minimum"):
        ChunkBudget(minimum=minimum, maximum=maximum)
