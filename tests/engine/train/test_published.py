"""A model's way from a training to a running core: whole, at once, and never a bad one."""

import json
import logging
import time
from pathlib import Path

import numpy as np
import pytest

from engine.memory.eviction.base import View
from engine.memory.eviction.features import NAMES, VERSION, Moment, rows
from engine.memory.eviction.guard import Foresight
from engine.memory.eviction.model import MOST_AGE_SECONDS, ModelProblem, ReuseModel, Weights, read, write
from engine.memory.eviction.sightings import NO_SCORE, Sightings
from engine.train.published import ModelWatch, load, publish

COUNT = len(NAMES)


def weights(**changes: object) -> Weights:
    """Return a model that scores by the first feature."""
    values: dict[str, object] = {
        "features_version": VERSION,
        "features": list(NAMES),
        "block_size": 16,
        "trained_at": time.time(),
        "seconds": 300.0,
        "mean": [0.0] * COUNT,
        "scale": [1.0] * COUNT,
        "inner": [[0.5]] + [[0.0]] * (COUNT - 1),
        "inner_bias": [0.0],
        "outer": [2.0],
        "outer_bias": 0.0,
    }
    return Weights(**(values | changes))  # type: ignore[arg-type]


@pytest.fixture
def watch(tmp_path: Path) -> ModelWatch:
    """A watch over a file that is not there yet."""
    made = ModelWatch(tmp_path / "reuse.json", 16, Foresight())
    made.close()  # the tests look for themselves
    return made


def test_a_model_comes_changes_and_goes(tmp_path: Path, watch: ModelWatch) -> None:
    """Each look takes up what is there now."""
    path, foresight = tmp_path / "reuse.json", watch._foresight
    assert foresight.model is None
    publish(path, write(weights()))
    watch.look()
    first = foresight.model
    assert isinstance(first, ReuseModel)
    watch.look()
    assert foresight.model is first
    publish(path, write(weights(seconds=77.0)))
    watch.look()
    assert foresight.model is not None
    assert foresight.model.seconds == 77.0
    path.unlink()
    watch.look()
    assert foresight.model is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe garbage",
        b"{}",
        b"[1, 2]",
        write(weights(features_version=VERSION + 1)),
        write(weights(features=["other"])),
        write(weights(block_size=32)),
        write(weights(trained_at=time.time() - 2 * MOST_AGE_SECONDS)),
        write(weights(inner=[[0.5]])),
        write(weights(inner_bias=[0.0, 0.0])),
        write(weights(outer=[])),
        write(weights(scale=[0.0] * COUNT)),
        write(weights(outer=[1e30])),
        write(weights(seconds=-1.0)),
        write(weights())[:-40],
        b" " * (2 << 20),
    ],
    ids=range(16),
)
def test_a_bad_file_changes_nothing(
    tmp_path: Path, watch: ModelWatch, caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    """Garbage, another version, other blocks, too old, torn, too large: one line in the log, the old one stays."""
    path = tmp_path / "reuse.json"
    publish(path, write(weights()))
    watch.look()
    model = watch._foresight.model
    publish(path, data)
    with caplog.at_level(logging.WARNING):
        watch.look()
        watch.look()
    warnings = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    assert warnings == ["reuse_model_ignored"]
    assert watch._foresight.model is model is not None


def test_not_a_number_is_refused() -> None:
    """JSON has no NaN, and what would overflow is refused before it is used."""
    told = json.loads(write(weights()))
    told["inner_bias"] = [float("nan")]
    with pytest.raises(ModelProblem, match="no model"):
        read(json.dumps(told).encode(), block_size=16)


def test_a_file_that_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    """A folder in its place, or none at all: an error, no wait."""
    with pytest.raises(OSError):  # noqa: PT011  # whichever the kernel says
        load(tmp_path, block_size=16)
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none", block_size=16)


def test_publishing_leaves_nothing_else_behind(tmp_path: Path) -> None:
    """The file is there as a whole, for its owner alone; a failed write leaves what was there."""
    path = tmp_path / "reuse.json"
    publish(path, b"one")
    publish(path, b"two")
    assert path.read_bytes() == b"two"
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(OSError):  # noqa: PT011
        publish(tmp_path / "none" / "reuse.json", b"three")
    assert [one.name for one in tmp_path.iterdir()] == ["reuse.json"]


def test_a_model_scores_what_it_sees() -> None:
    """Scores of a prompt are the network's, as bytes; folding mean and scale into it changes nothing."""
    names = np.arange(1, 8, dtype=np.uint64) << np.uint64(52)
    view = View(Sightings().look(names, 5.0), Moment(0.0, 0.5))
    made = rows(*view)
    mean, scale = made.mean(0) + 0.25, made.std(0) + 0.5
    model = ReuseModel(weights(mean=mean.tolist(), scale=scale.tolist(), inner=[[0.3]] * COUNT))
    expected = np.tanh(((made - mean) / scale) @ np.full(COUNT, 0.3)) * 2
    assert np.allclose(model.scores(made), expected, atol=1e-5)
    assert np.abs(model.judge(view).astype(float) - NO_SCORE - 20 * expected).max() <= 0.51
