"""The real model with steps planned ahead: placeholders, dropped tokens and late ones change no text."""

from collections import deque
from pathlib import Path

import pytest

from engine.model.runner import ModelRunner
from engine.request import BeamParams, GenerationRequest, RequestId, SamplingParams, SequenceId, TenantId
from engine.scheduler.plan import Scheduler
from engine.step import StepHandle, StepPlan
from tests.engine.test_exact_under_pressure import PROMPTS, TENANTS, make_engine, set_limit
from tests.engine.tiny_model import make_tiny_model
from tests.engine.world import ShortOutputs


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint."""
    return make_tiny_model(tmp_path_factory.mktemp("model") / "tiny", seed=2)


def submit(scheduler: Scheduler, number: int, stop_ids: frozenset[int]) -> None:
    """Submit a prompt: even ones greedy, odd ones seeded, some with several outputs, beams or log-probabilities.

    Others with penalties, a bias, or end tokens that must wait.
    """
    is_shaped = number % 5 == 4
    sampling = SamplingParams(
        max_tokens=24,
        temperature=0.8 * (number % 2),
        top_k=20,
        seed=number,
        ignore_eos=True,
        stop_token_ids=stop_ids,
        num_logprobs=2 if number % 4 == 3 else -1,
        frequency_penalty=0.6 if is_shaped else 0.0,
        repetition_penalty=1.2 if is_shaped else 1.0,
        logit_bias=((number + 13, 2.0), (number + 11, 3.0)) if number % 5 == 1 else (),  # an end token among them
        min_tokens=22 if number % 5 in (1, 3, 4) else 0,
    )
    request = GenerationRequest(
        request_id=RequestId(str(number)),
        tenant=TenantId(TENANTS[number % 2]),
        namespace=TENANTS[number % 2].encode(),
        prompt=PROMPTS[number],
        sampling=sampling,
        n=2 if number % 5 == 2 else 1,
        beams=BeamParams(width=3) if number == 7 else None,
    )
    scheduler.submit(SequenceId(number), request)


class Driver:
    """Steps an engine in turn, or with one step in flight; gathers what each output is told."""

    def __init__(self, scheduler: Scheduler, runner: ModelRunner, *, ahead: bool) -> None:
        self.tokens: dict[tuple[int, int], list[int]] = {}
        self.ends: dict[tuple[int, int], str] = {}
        self.num_placeholders = 0
        self._scheduler, self._runner, self._ahead = scheduler, runner, ahead
        self._launched: deque[tuple[StepPlan, StepHandle]] = deque()

    def run(self, steps: int = 1000) -> None:
        """Step until nothing can run, or for so many steps."""
        for _ in range(steps):
            plan = self._scheduler.plan()
            self._scheduler.audit()
            if plan is not None:
                self.num_placeholders += sum(min(part.token_ids) < 0 for part in plan.sequences)
                self._launched.append((plan, self._runner.launch(plan)))
            elif not self._launched:
                return
            while len(self._launched) > (self._ahead and plan is not None):
                self._commit(*self._launched.popleft())

    def _commit(self, plan: StepPlan, handle: StepHandle) -> None:
        for output in self._scheduler.commit(plan, handle.wait()):
            key = (output.sequence, output.output_index)
            self.tokens.setdefault(key, []).extend(output.token_ids)
            if output.finish_reason is not None:
                self.ends[key] = output.finish_reason
        self._scheduler.audit()


def drive(model: Path, *, ahead: bool, num_blocks: int = 20, moves: bool = True) -> tuple[Driver, Scheduler]:
    """Run all prompts through a pool that is too small for them, with limits that move and one cancel."""
    scheduler, runner = make_engine(model, num_blocks=num_blocks, budget=16)
    set_limit(scheduler, 1, num_blocks)
    for name in TENANTS:
        scheduler.roster.tenant(TenantId(name)).lengths = ShortOutputs()  # admit more than will fit
    driver = Driver(scheduler, runner, ahead=ahead)
    for number in range(len(PROMPTS)):
        submit(scheduler, number, frozenset(range(number, 300, 11)))
        driver.run(steps=3)
    for version, blocks in ((2, 13), (3, num_blocks)) if moves else ():
        set_limit(scheduler, version, blocks)
        driver.run(steps=20)
    driver.run()
    return driver, scheduler


def test_tokens_are_those_of_steps_in_turn(model: Path) -> None:
    """Greedy, seeded, several outputs, beams, stop tokens: each output has the same text and the same end."""
    in_turn, _ = drive(model, ahead=False, num_blocks=64, moves=False)
    ahead, scheduler = drive(model, ahead=True)
    assert (in_turn.num_placeholders, ahead.num_placeholders > 50) == (0, True)
    assert scheduler.roster.num_preemptions > 3
    assert ahead.tokens == in_turn.tokens
    assert ahead.ends == in_turn.ends
    assert set(ahead.ends.values()) == {"stop", "length"}
    assert not scheduler.roster.sequences
    assert scheduler.memory.pool.num_free + scheduler.memory.pool.num_cached == scheduler.memory.shape.num_blocks
