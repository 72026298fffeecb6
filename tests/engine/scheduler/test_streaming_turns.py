"""In which steps streamed sequences are: others' tokens come in time, and the streamed ones get theirs."""

import pytest

from engine.request import Priority, SequenceId
from engine.scheduler.sequence import SequenceState
from engine.scheduler.step_time import StepTimeModel, StepWork
from engine.scheduler.streaming_turns import MOST_PLANS, StreamingTurns
from engine.scheduler.targets import INTER_TOKEN_SECONDS, StepTarget
from engine.step import StepPlan
from tests.engine.fake_runner import Launched
from tests.engine.world import World

BASE, HOSTED = 0.01, 0.001  # seconds of a step, and of a block in host memory


class Known(StepTimeModel):
    """A machine whose speed is known, but for how fast it reads host memory."""

    def __init__(self) -> None:
        super().__init__()
        self.num_observed = 1

    def predict(self, work: StepWork) -> float:
        """Return the seconds of a step."""
        return BASE


def running(rank: Priority = Priority.STANDARD, lengths: tuple[int, ...] = (200,)) -> World:
    """Return a world in which sequences are streamed, and a small one of a class decodes beside them."""
    world = World(num_blocks=128, budget=64, max_context=512, num_slabs=1000, streams=True)
    for tenant in ("whale", "minnow"):
        world.policy(tenant, blocks=24 if tenant == "whale" else 100, slabs=1000, max_context_tokens=512)
    large = [world.submit("whale", length, 200) for length in lengths]
    while not all(world.tokens[one] for one in large):
        world.step()
    small = world.submit("minnow", 4, 200, priority=rank)
    while not world.tokens[small]:
        world.step()
    return world


def parts(world: World) -> tuple[list[SequenceState], list[SequenceState]]:
    """Return who is streamed, and all that run."""
    return world.scheduler.roster.streaming.running, world.scheduler.roster.running


def make_turns(hosted_seconds: float = HOSTED) -> StreamingTurns:
    """Return turns on a machine of known speed, which has read a little from host memory."""
    model = Known()
    turns = StreamingTurns(model, StepTarget(model))
    for _ in range(200):
        rest = turns.observe(StepWork(1, 1), 10, BASE + 10 * hosted_seconds)
    assert rest == pytest.approx(BASE, rel=1e-3)
    return turns


def test_it_is_in_each_step_that_it_fits() -> None:
    """Reading that the target leaves room for keeps nobody from any step."""
    world = running()
    turns = make_turns(0.0001)
    assert all(not turns.resting(*parts(world), number, world.now) for number in range(100, 150))


@pytest.mark.parametrize("times", [2.0, 5.5])
def test_it_is_in_each_kth_step_else(times: float) -> None:
    """Reading that takes k times what the target leaves is paid for by k steps."""
    world = running()
    (large,), _ = parts(world)
    assert large.table is not None
    room = INTER_TOKEN_SECONDS[1] - BASE
    turns = make_turns(times * room / large.table.num_hosted)
    large.turn = 100
    rests = [bool(turns.resting(*parts(world), number, world.now)) for number in range(101, 211)]
    assert rests.count(False) == int(110 / times)


def test_a_slow_one_has_its_turn_nevertheless() -> None:
    """However long its reading takes, nobody sits out more than so many plans."""
    world = running()
    (large,), _ = parts(world)
    turns = make_turns(1000.0)
    large.turn = 100
    rests = [bool(turns.resting(*parts(world), number, world.now)) for number in range(101, 101 + 3 * MOST_PLANS)]
    assert rests.count(False) == 3


def test_those_of_a_tenant_take_turns() -> None:
    """Of two that do not both fit, each is in as many steps as the other."""
    world = running(lengths=(200, 210))
    streamed, _ = parts(world)
    assert len(streamed) == 2
    most = max(one.table.num_hosted for one in streamed if one.table is not None)
    turns = make_turns(1.5 * INTER_TOKEN_SECONDS[1] / most)
    count = dict.fromkeys(streamed, 0)
    for number in range(200, 400):
        resting = turns.resting(*parts(world), number, world.now)
        for one in streamed:
            count[one] += one not in resting
    assert min(count.values()) >= 40
    assert max(count.values()) - min(count.values()) <= 2


def test_without_others_nobody_rests() -> None:
    """Where no other decode runs, and where all others take what comes, each step has everybody in it."""
    world = running(Priority.BATCH)
    turns = make_turns(1000.0)
    streamed, every = parts(world)
    assert not turns.resting(streamed, every, 1000, world.now + 100)
    assert not turns.resting(streamed, streamed, 1001, world.now + 100)
    assert all(one.turn == 1001 for one in streamed)


def test_steps_beside_a_slow_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A minnow's tokens come in time in the mean while a whale streams, and the whale ends; all tokens are exact."""
    world = World(num_blocks=128, budget=64, max_context=512, num_slabs=1000, streams=True)
    for tenant in ("whale", "minnow"):
        world.policy(tenant, blocks=16 if tenant == "whale" else 100, slabs=1000, max_context_tokens=512)
    _slow(world, monkeypatch)
    large = world.submit("whale", 200, 20)
    small = world.submit("minnow", 4, 200)
    while len(world.tokens[small]) < 20:
        world.step()
    began, first = world.now, len(world.tokens[small])
    while large not in world.finished:
        assert world.step()
    seconds = (world.now - began) / (len(world.tokens[small]) - first)
    assert seconds <= 1.2 * INTER_TOKEN_SECONDS[1]
    world.run(5000)
    for one in (large, small):
        world.assert_exact(one)


def _slow(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let reading a block from host memory take 20 ms, in a step of 10."""
    commit = world._commit

    def timed(plan: StepPlan, step: Launched, seconds: float) -> None:
        commit(plan, step, BASE + 0.02 * sum(len(part.hosted) for part in plan.sequences))

    monkeypatch.setattr(world, "_commit", timed)


def test_a_step_is_never_empty_for_a_rest() -> None:
    """A target that leaves nothing does not keep the only one that could run from running."""
    world = running()
    (large,), _ = parts(world)
    world.cancel(SequenceId(2))
    before = len(world.tokens[large.id])
    world.step()
    assert len(world.tokens[large.id]) == before + 1
