"""One training: learn from the older part of a trace, try on the newer part, learn again from all of it.

asked ─▶ sample ─▶ fit on the first 70 % ─▶ how many seconds is a score worth? ─▶ better than table and LRU?
                                                                                  └▶ fit on all ─▶ model
"""

import time
from collections.abc import Sequence
from functools import partial

import msgspec
import numpy as np

from engine.memory.eviction.guard import GuardedOrder
from engine.memory.eviction.model import ReuseModel, Weights
from engine.train.asked import Ask, Asked
from engine.train.examples import sample, useless
from engine.train.fit import fit
from engine.train.judge import SHARES, Story, auc, hit_rates, lru, mean, stories, under

TRAINED_SHARE = 0.7
SECONDS = (300.0, 150.0, 600.0, 75.0, 1200.0)  # that a logarithm may be worth, the likeliest first
LEAST_PROMPTS = 200
LEAST_BACK = 100.0  # blocks that came back, of those to learn from
SIMULATED_BLOCKS = 250_000


class Metrics(msgspec.Struct, kw_only=True):
    """How a training went; logged, and kept beside the model."""

    published: bool = False
    reason: str = ""  # why not
    at: float = 0.0  # unix seconds
    cpu_seconds: float = 0.0
    prompts: int = 0
    blocks: int = 0
    trace_seconds: float = 0.0
    left_out: list[str] = []  # features that nothing can be learned of
    loss: float = 0.0
    epochs: int = 0
    auc: float = 0.0  # on the held-out part: 0.5 knows nothing
    auc_table: float = 0.0
    cache_shares: list[float] = []  # sizes of the caches tried, by all blocks that were asked for
    hit_rates: list[float] = []  # of each, on the held-out part
    hit_rates_table: list[float] = []
    hit_rates_lru: list[float] = []
    seconds: float = 0.0  # of recency that a logarithm is worth


def train(asked: Asked, deadline: float) -> tuple[Weights | None, Metrics]:
    """Return a model, if there is one that is better than what a worker has anyway, and how it went.

    Args:
        asked: what was asked.
        deadline: by `time.process_time`; what has not been tried by then is left.
    """
    began = time.process_time()
    metrics = Metrics(prompts=len(asked.asks), blocks=asked.num_blocks, trace_seconds=asked.seconds, at=time.time())
    weights = _train(asked, deadline, metrics)
    metrics.cpu_seconds = round(time.process_time() - began, 3)
    return weights, metrics


def _train(asked: Asked, deadline: float, metrics: Metrics) -> Weights | None:
    asks = asked.asks
    if len(asks) < LEAST_PROMPTS:
        metrics.reason = f"{len(asks)} prompts are too few to learn from: {LEAST_PROMPTS} at least"
        return None
    split, end = _split(asks), float(np.nextafter(asks[-1].at, np.inf))
    seen, without = sample(asks), useless(asks)
    metrics.left_out = list(without)
    known, held_out = seen.known(split), seen.known(end, since=split)
    if known.weights[known.came_back].sum() < LEAST_BACK:
        metrics.reason = "hardly any block was asked for twice: there is nothing to learn"
        return None
    to_fit = partial(fit, without=without, block_size=asked.block_size)
    trial = to_fit(known, deadline=time.process_time() + (deadline - time.process_time()) / 4)
    seconds = _try_seconds(trial.weights, _newest(asks, split), deadline, metrics)
    model = ReuseModel(trial.weights)
    metrics.auc = round(auc(model.scores(held_out.rows), held_out), 4)
    metrics.auc_table = round(auc(held_out.table, held_out), 4)
    if not _is_better(metrics):
        return None
    fitted = to_fit(seen.known(end), deadline=deadline)
    metrics.loss, metrics.epochs, metrics.seconds = round(fitted.loss, 5), fitted.epochs, seconds
    return msgspec.structs.replace(fitted.weights, seconds=seconds)


def _split(asks: Sequence[Ask]) -> float:
    """Return the moment by which so many of the blocks have been asked for."""
    sums = np.cumsum([len(ask.blocks) for ask in asks])
    return asks[int(np.searchsorted(sums, TRAINED_SHARE * sums[-1]))].at


def _newest(asks: Sequence[Ask], split: float) -> list[Story]:
    """Return what is simulated: the newest requests, as many as there is time for."""
    num_blocks, first = 0, len(asks)
    while first and num_blocks < SIMULATED_BLOCKS:
        first -= 1
        num_blocks += len(asks[first].blocks)
    newest = asks[first:]
    return stories(newest, max(split, newest[len(newest) // 3].at))


def _try_seconds(weights: Weights, told: Sequence[Story], deadline: float, metrics: Metrics) -> float:
    """Return how many seconds of recency a logarithm of the score is best worth; note how well everyone does."""
    metrics.cache_shares = list(SHARES)
    metrics.hit_rates_lru = hit_rates(told, lru)
    metrics.hit_rates_table = hit_rates(told, GuardedOrder)
    best = SECONDS[0]
    for seconds in SECONDS:
        rates = hit_rates(told, under(ReuseModel(msgspec.structs.replace(weights, seconds=seconds))))
        if not metrics.hit_rates or mean(rates) > mean(metrics.hit_rates):
            best, metrics.hit_rates = seconds, rates
        if time.process_time() > deadline:
            break
    for rates in (metrics.hit_rates, metrics.hit_rates_lru, metrics.hit_rates_table):
        rates[:] = [round(rate, 4) for rate in rates]
    return best


def _is_better(metrics: Metrics) -> bool:
    """Say whether the model has earned its place; note why not."""
    if metrics.auc <= metrics.auc_table:
        metrics.reason = "the hazard table tells what comes back as well"
    elif mean(metrics.hit_rates) <= mean(metrics.hit_rates_lru):
        metrics.reason = "a cache under it hits no more than under plain LRU"
    elif mean(metrics.hit_rates) <= mean(metrics.hit_rates_table):
        metrics.reason = "a cache under it hits no more than under the hazard table"
    return not metrics.reason
