"""A trained predictor: a small network over the features of a block, evaluated with numpy.

    score = tanh(clip((row - mean) / scale, ±FAR) · inner + inner_bias) · outer + outer_bias

`python -m engine.train` makes it; it travels as JSON of some kilobytes. A model for other features or for blocks of
another size is refused: its numbers would mean something else.
"""

import time
from functools import cached_property
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from engine.memory.eviction import features
from engine.memory.eviction.base import View
from engine.memory.eviction.sightings import Bytes, Floats, to_bytes

MOST_BYTES = 1 << 20  # of a file
MOST_AGE_SECONDS = 30 * 86_400.0  # habits change
FAR = 5.0  # deviations: what is further from anything seen is as good as that far
_MOST_WIDTH = 64
_MOST_WEIGHT = 1e6

Row = list[float]


class ModelProblem(Exception):
    """Why a model is not used; the message is for operators."""


class Weights(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is kept in the file."""

    features_version: int
    features: list[str]
    block_size: int  # tokens
    trained_at: float  # unix seconds
    seconds: Annotated[float, Meta(gt=0, le=1e6)]  # of recency that one logarithm of the score is worth
    mean: Row
    scale: Row
    inner: list[Row]  # [features, width]
    inner_bias: Row
    outer: Row
    outer_bias: float


class ReuseModel:
    """A Predictor."""

    name = "model"

    def __init__(self, weights: Weights) -> None:
        """Take weights in.

        Raises:
            ModelProblem: they are not for these features, do not fit together, or are no numbers.
        """
        count, width = len(features.NAMES), len(weights.outer)
        if weights.features_version != features.VERSION or tuple(weights.features) != features.NAMES:
            raise ModelProblem("it was trained on other features: train it anew")
        fits = len(weights.mean) == len(weights.scale) == len(weights.inner) == count
        fits = fits and len(weights.inner_bias) == width and all(len(row) == width for row in weights.inner)
        if not fits or not 1 <= width <= _MOST_WIDTH:
            raise ModelProblem("its weights do not fit together")
        if not min(weights.scale) > 0:
            raise ModelProblem("a scale is not above 0")
        self.weights = weights
        self.seconds = weights.seconds
        numbers = np.concatenate([np.ravel(one) for one in self._arrays])
        if not (np.isfinite(numbers).all() and np.abs(numbers).max() <= _MOST_WEIGHT):
            raise ModelProblem("a weight is out of range")

    @cached_property
    def _arrays(self) -> tuple[Floats, ...]:
        one = self.weights
        layers = (one.mean, one.scale, one.inner, one.inner_bias, one.outer, one.outer_bias)
        return tuple(np.array(layer, np.float32) for layer in layers)

    def scores(self, rows: Floats) -> Floats:
        """Return the logarithm of how much likelier than usual each block is to come back.

        Args:
            rows: [blocks, features].
        """
        mean, scale, inner, inner_bias, outer, outer_bias = self._arrays
        near = np.clip((rows - mean) / scale, -FAR, FAR)
        result: Floats = np.tanh(near @ inner + inner_bias) @ outer + outer_bias
        return result

    def judge(self, view: View) -> Bytes:
        """Return the score of each block of a prompt."""
        return to_bytes(self.scores(features.rows(view.sight, view.moment)))


def read(data: bytes, *, block_size: int, now: float | None = None) -> ReuseModel:
    """Return the model in a file.

    Raises:
        ModelProblem: it is none, or not for blocks of this size, or too old.
    """
    try:
        weights = msgspec.json.decode(data, type=Weights)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ModelProblem(f"it is no model: {error}") from error
    if weights.block_size != block_size:
        raise ModelProblem(f"it is for blocks of {weights.block_size} tokens, not of {block_size}")
    age = (time.time() if now is None else now) - weights.trained_at
    if not -86_400 < age < MOST_AGE_SECONDS:
        raise ModelProblem(
            f"it was trained {age / 86_400:.0f} days ago, and is used for {MOST_AGE_SECONDS / 86_400:.0f}"
        )
    return ReuseModel(weights)


def write(weights: Weights) -> bytes:
    """Return the file of a model."""
    return msgspec.json.format(msgspec.json.encode(weights), indent=1)
