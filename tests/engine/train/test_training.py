"""Training: an obvious habit is learned, nothing is not, and what is learned travels unchanged."""

import time
from random import Random

import msgspec
import numpy as np
import pytest
import torch

from engine.memory.eviction.features import NAMES
from engine.memory.eviction.model import FAR, ReuseModel, read, write
from engine.train.asked import Ask, Asked
from engine.train.examples import Examples, sample, useless
from engine.train.fit import EDGES, LATER_EDGES, fit, intervals
from engine.train.judge import auc
from engine.train.training import train
from tests.engine.train.habits import no_habit, short_ones_return


def far() -> float:
    """Return a deadline that no test comes to."""
    return time.process_time() + 1000


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def test_an_obvious_habit_is_learned() -> None:
    """Prompts of two blocks return, long ones never: the model ranks nearly all of the held-out ones right."""
    asks = short_ones_return(Random())
    split = asks[len(asks) * 2 // 3].at
    seen = sample(asks)
    fitted = fit(seen.known(split), without=useless(asks), block_size=16, deadline=far())
    held_out = seen.known(asks[-1].at, since=split)
    assert auc(ReuseModel(fitted.weights).scores(held_out.rows), held_out) > 0.9


def test_a_training_publishes_what_is_better() -> None:
    """Where there is a habit, a model comes out of it, with its measures."""
    weights, metrics = train(Asked(short_ones_return(Random(), 700), 16), far())
    assert metrics.auc > metrics.auc_table - 0.05
    assert (weights is None) == bool(metrics.reason)
    assert len(metrics.hit_rates) == len(metrics.hit_rates_lru) == len(metrics.hit_rates_table) == 3
    if weights is not None:
        assert weights.seconds == metrics.seconds > 1
        assert np.mean(metrics.hit_rates) > max(np.mean(metrics.hit_rates_lru), np.mean(metrics.hit_rates_table))


def test_nothing_to_learn_is_not_published() -> None:
    """Too few prompts, or none that was asked for twice: no model, and a reason."""
    few, metrics = train(Asked(no_habit(Random(), 20), 16), far())
    assert few is None
    assert "too few" in metrics.reason
    once = [Ask(float(number), "tenant minnow", [number], []) for number in range(500)]
    none, metrics = train(Asked(once, 16), far())
    assert none is None
    assert "twice" in metrics.reason


def test_what_is_exported_is_what_was_trained() -> None:
    """The network in torch and its JSON in numpy say the same within 1e-5."""
    asks = short_ones_return(Random(), 150)
    examples = sample(asks).known(asks[-1].at)
    weights = fit(examples, without=("depth",), block_size=16, deadline=far()).weights
    model = read(write(weights), block_size=16)
    rows = torch.from_numpy((examples.rows - np.array(weights.mean, np.float32)) / np.array(weights.scale, np.float32))
    rows = rows.clamp(-FAR, FAR)
    inner = torch.tensor(weights.inner, dtype=torch.float32)
    hidden = torch.tanh(rows @ inner + torch.tensor(weights.inner_bias))
    scores = hidden @ torch.tensor(weights.outer) + weights.outer_bias
    assert np.abs(model.scores(examples.rows) - scores.numpy()).max() < 1e-5
    assert abs(np.average(model.scores(examples.rows), weights=examples.weights)) < 1e-4
    assert not np.any(np.array(weights.inner)[NAMES.index("depth")])


def test_the_hour_is_left_out_of_a_short_trace() -> None:
    """Of two days the hour of day says nothing, of one tenant its rate of reuse does not."""
    one = [Ask(float(number), "tenant minnow", [number], []) for number in range(10)]
    assert set(useless(one)) == {"hour_sine", "hour_cosine", "reuse_rate"}
    week = [Ask(number * 86_400.0, f"tenant {number}", [number], []) for number in range(7)]
    assert useless(week) == ()


def test_what_is_not_known_yet_counts_for_what_was_seen() -> None:
    """A block that came back after 40 s was seen in three intervals; one that was watched for 40 s in two, whole."""
    examples = Examples(
        rows=np.zeros((4, len(NAMES)), np.float32),
        seconds=np.array([40.0, 40.0, 0.0, 1e9]),
        came_back=np.array([True, False, True, False]),
        weights=np.full(4, 2, np.float32),
        table=np.zeros(4, np.float32),
    )
    events, at_risk = intervals(examples)
    assert events.sum(1).tolist() == [2.0, 0.0, 2.0, 0.0]
    assert events[0, 2] == events[2, 0] == 2.0
    assert at_risk.sum(1).tolist() == [6.0, 4.0, 2.0, 2.0 * (len(EDGES) + len(LATER_EDGES) - 1)]


def test_a_sample_is_what_a_worker_would_have_seen() -> None:
    """The future is in no row: cutting the trace short changes none of those before."""
    asks = short_ones_return(Random(), 60)
    whole, part = sample(asks), sample(asks[:50])
    assert np.array_equal(whole.rows[: len(part.rows)], part.rows)
    known = whole.known(asks[49].at)
    assert not known.came_back[known.seconds == asks[49].at - whole.at[: len(known.seconds)]].any()


def test_the_measure_of_ranking() -> None:
    """1 for a perfect order, 0.5 for none, half for ties; what is not known is left out."""
    examples = Examples(
        rows=np.zeros((5, len(NAMES)), np.float32),
        seconds=np.array([10.0, 20.0, 4000.0, 5000.0, 5.0]),
        came_back=np.array([True, True, False, True, False]),
        weights=np.ones(5, np.float32),
        table=np.zeros(5, np.float32),
    )
    assert auc(np.array([3, 2, 1, 0, 9], np.float32), examples) == 1.0
    assert auc(np.array([0, 1, 2, 3, 9], np.float32), examples) == 0.0
    assert auc(np.zeros(5, np.float32), examples) == 0.5


def test_a_training_stops_in_time() -> None:
    """With its time over, it ends with the epoch and the trial under way."""
    _, metrics = train(Asked(short_ones_return(Random(), 300), 16), time.process_time())
    assert metrics.hit_rates
    assert metrics.epochs <= 1
    assert msgspec.json.decode(msgspec.json.encode(metrics))["prompts"] > 300
