"""Fits the network: proportional hazards in discrete time, by torch.

    P(asked for in an interval | not asked for before it) = sigmoid(base of the interval + score of the block)

One score for all intervals says that a block is so much likelier than usual to come back, whenever: what an eviction
order needs. What was not asked for until the end of the trace counts for the intervals that it was seen in.
(Cox 1972; the discrete form is that of Prentice and Gloeckler 1978 with a logistic link.)
"""

import time
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from engine.memory.eviction.features import NAMES, VERSION
from engine.memory.eviction.model import FAR, Weights
from engine.train.examples import Examples

WIDTH = 16
EDGES = (0, 15, 30, 45, 60, 75, 90, 120, 150, 180, 240, 300, 360, 480, 600, 780, 960, 1200, 1500, 1920, 2400, 3000)
LATER_EDGES = (3840, 7680, 15_360, 30_720, 61_440, 122_880, 245_760)
_MOST_BATCH, _LEAST_BATCH, _BATCHES = 2048, 128, 64  # of an epoch, if there are not more examples than that
_EPOCHS = 8
_RATE, _DECAY = 4e-3, 1e-2
_PRIOR_EVENTS = 0.5


class Fitted(NamedTuple):
    """A network and how it was fitted."""

    weights: Weights
    loss: float  # mean over the last epoch, of a block
    epochs: int


class Network(nn.Module):
    """What `engine.memory.eviction.model` evaluates."""

    def __init__(self, num_features: int, width: int = WIDTH) -> None:
        super().__init__()
        self.inner = nn.Linear(num_features, width)
        self.outer = nn.Linear(width, 1)

    def forward(self, rows: Tensor) -> Tensor:
        """Return the score of each row of [rows, features], scaled."""
        score: Tensor = self.outer(torch.tanh(self.inner(rows)))
        return score.squeeze(-1)


def fit(examples: Examples, *, without: tuple[str, ...], block_size: int, deadline: float, seed: int = 0) -> Fitted:
    """Fit a network; one with `seconds` of 1, to be chosen afterwards.

    Args:
        examples: at least one.
        without: features to leave out.
        block_size: tokens of a block.
        deadline: by `time.process_time`: it ends with the epoch that is under way then.
        seed: of the first weights and of the order.
    """
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    used = np.array([name not in without for name in NAMES])
    mean = np.where(used, examples.rows.mean(0), 0.0)
    spread = examples.rows.std(0)
    used &= spread > 1e-6
    scale = np.where(used, spread, 1.0)
    rows = torch.from_numpy(np.clip((examples.rows - mean) / scale * used, -FAR, FAR).astype(np.float32))
    events, at_risk = (torch.from_numpy(one) for one in intervals(examples))
    network = Network(len(NAMES))
    total = events.sum(0), at_risk.sum(0)
    base = nn.Parameter(torch.log((total[0] + _PRIOR_EVENTS) / (total[1] - total[0] + 2 * _PRIOR_EVENTS)))
    batch = min(_MOST_BATCH, max(_LEAST_BATCH, len(rows) // _BATCHES))
    steps = _EPOCHS * -(-len(rows) // batch)
    optimizer = torch.optim.AdamW([*network.parameters(), base], lr=_RATE, weight_decay=_DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3 * _RATE, total_steps=steps + 1)
    loss, epochs = 0.0, 0
    for _ in range(_EPOCHS):
        sums = 0.0
        for chosen in torch.split(torch.randperm(len(rows), generator=generator), batch):
            logits = base + network(rows[chosen]).unsqueeze(-1)
            costs = binary_cross_entropy_with_logits(logits, events[chosen].sign(), reduction="none")
            cost = (costs * at_risk[chosen]).sum() / at_risk[chosen, 0].sum()
            optimizer.zero_grad()
            torch.autograd.backward(cost)
            optimizer.step()
            schedule.step()
            sums += cost.item() * len(chosen)
        loss, epochs = sums / len(rows), epochs + 1
        if time.process_time() > deadline:
            break
    with torch.no_grad():
        usual = float(np.average(network(rows).numpy(), weights=examples.weights))
    weights = Weights(
        features_version=VERSION,
        features=list(NAMES),
        block_size=block_size,
        trained_at=time.time(),
        seconds=1.0,
        mean=mean.tolist(),
        scale=scale.tolist(),
        inner=(network.inner.weight.detach().numpy().T * used[:, None]).tolist(),
        inner_bias=network.inner.bias.detach().numpy().tolist(),
        outer=network.outer.weight.detach().numpy()[0].tolist(),
        outer_bias=network.outer.bias.item() - usual,
    )
    return Fitted(weights, loss, epochs)


def intervals(examples: Examples) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return for each example and interval the blocks that came back in it, and those of which that would be known."""
    edges = np.array((*EDGES, *LATER_EDGES), np.float64)
    count = len(edges) - 1
    last = np.clip(np.searchsorted(edges, examples.seconds, side="left") - 1, 0, count - 1)
    numbers = np.arange(count)
    back = examples.came_back & (examples.seconds <= edges[-1])
    weights = examples.weights[:, None]
    events = (numbers == last[:, None]) & back[:, None]
    whole = numbers < last[:, None] + (examples.seconds > edges[-1])[:, None]  # all of the interval was seen
    return (events * weights).astype(np.float32), ((whole | events) * weights).astype(np.float32)
