"""Steps launched before the tokens of the ones before them are known. Poison is on."""

import pytest

from engine.config import EngineConfig
from engine.errors import CoreError
from engine.model.folder import ModelFolder
from engine.model.runner import ModelRunner
from engine.request import BlockId, SamplingParams, SequenceId
from engine.step import SequenceStep, StepPlan, TableWrite, placeholder
from tests.engine.model.ahead import generate_ahead
from tests.engine.model.checkpoints import make_checkpoint, prompt_of
from tests.engine.model.device_like import Rerun, device_like
from tests.engine.model.driver import GREEDY, Drive, generate

LENGTHS = [1, 2, 7, 15, 16, 17, 31, 64, 100, 170, 257]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    """A tiny Llama."""
    return make_checkpoint(tmp_path_factory.mktemp("llama"), "llama")


def config(backend: str) -> EngineConfig:
    """Return settings of a small engine."""
    return EngineConfig(backend=backend, dtype="float32", kv_bytes=1 << 20, poison=True, max_running=12, threads=1)


@pytest.mark.parametrize("backend", ["reference", "auto"])
def test_tokens_are_those_of_steps_in_turn(folder: ModelFolder, backend: str) -> None:
    """Planned ahead, on the CPU and as on a GPU, with graphs and without, sequences that arrive over time, change
    places and leave get the tokens that they get one step after the other, greedy and seeded.
    """
    prompts = [prompt_of(length) for length in LENGTHS]
    samplings = [
        GREEDY if index % 2 else SamplingParams(temperature=0.9, top_p=0.9 if index % 4 else 1.0, top_k=index)
        for index in range(len(prompts))
    ]
    expected = generate(ModelRunner(config(backend), folder), prompts, Drive(num_tokens=12), samplings)
    for seed, link in enumerate((None, device_like(), device_like(Rerun()))):
        runner = ModelRunner(config(backend), folder, link)
        assert runner.runs_ahead == (link is not None)
        found = generate_ahead(runner, prompts, samplings, seed)
        assert {len(tokens) for tokens in found} == set(range(6, 13))
        assert found == [tokens[: len(one)] for tokens, one in zip(expected, found, strict=True)]


def test_placeholder_of_nothing_ends_the_step(folder: ModelFolder) -> None:
    """A placeholder in the first step, or of a token that the step before has not sampled, is an error."""
    runner = ModelRunner(config("auto"), folder)
    writes = (TableWrite(row=0, column=0, blocks=(BlockId(1),)),)

    def plan(number: int, start: int, token: int) -> StepPlan:
        part = SequenceStep(sequence=SequenceId(0), row=0, start=start, token_ids=[token], sampling=GREEDY)
        return StepPlan(number=number, sequences=(part,), table_writes=writes)

    with pytest.raises(CoreError, match="step 4 asks for token 0"):
        runner.launch(plan(4, 0, placeholder(0)))
    runner.launch(plan(5, 0, 7)).wait()
    with pytest.raises(CoreError, match="step 6 asks for token 1 of the step before it, which sampled 1"):
        runner.launch(plan(6, 1, placeholder(1)))


def test_third_step_in_flight_is_refused(folder: ModelFolder) -> None:
    """A step is not launched while two before it have not been waited for; a result may be asked for again."""
    runner = ModelRunner(config("auto"), folder, device_like())
    part = SequenceStep(sequence=SequenceId(0), row=0, start=0, token_ids=[5], sampling=GREEDY)
    plan = StepPlan(number=0, sequences=(part,), table_writes=(TableWrite(row=0, column=0, blocks=(BlockId(1),)),))
    handles = [runner.launch(plan) for _ in range(2)]
    with pytest.raises(CoreError, match="2 before it"):
        runner.launch(plan)
    results = [handle.wait() for handle in handles]
    runner.launch(plan).wait()
    assert [handle.wait() for handle in handles] == results
    assert results[0].token_ids == results[1].token_ids
