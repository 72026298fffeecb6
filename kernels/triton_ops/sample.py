"""`sample`: a token for each row of logits, greedy or drawn; one program a row, and no word to the host.

A row is never sorted. Where `top_k` or `top_p` bound it, the logit that they end at is searched among all floats: each
pass over the row sums what lies over eight of them, and an eighth is left. What is equal to that logit counts from the
first token until enough is reached; then the weights of what is kept are summed in the order of tokens up to the draw.
"""

import torch
import triton
import triton.language as tl

from kernels.reference.sampling import COLDEST
from kernels.triton_ops.launch import Launch, power_of_two

_MOST = 2048  # tokens at once


@triton.jit
def key_of(x):
    """Return float32 as int32 in the order of the floats: one zero, and one NaN, over all else."""
    bits = x.to(tl.int32, bitcast=True)
    key = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    key = tl.where(x == 0.0, 0, key)
    return tl.where(x != x, 0x7FFFFFFF, key)


@triton.jit
def float_of(key):
    """Return what has the key."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def weight_of(x, best, inverse, floor):
    """Return exp((x - best) * inverse), and nothing where that is under e^floor."""
    distance = (x - best) * inverse
    return tl.where(distance < floor, 0.0, tl.exp(distance))


@triton.jit
def load_keys(logits, start, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    """Return tokens from `start` on, their logits in float32 and their keys: those behind the last are under all."""
    tokens = start + tl.arange(0, BLOCK)
    real = tokens < VOCAB
    x = tl.load(logits + tokens, mask=real, other=float("-inf")).to(tl.float32)
    return tokens, x, tl.where(real, key_of(x), -0x80000000)


@triton.jit
def first_best(logits, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    """Return the greatest key and the first token that has it."""
    best = tl.full([], -0x80000000, tl.int32)
    place = tl.full([], 0, tl.int32)
    for start in range(0, VOCAB, BLOCK):
        tokens, _, keys = load_keys(logits, start, VOCAB, BLOCK)
        most = tl.max(keys, 0)
        first = tl.min(tl.where(keys == most, tokens, VOCAB), 0)
        place = tl.where(most > best, first, place)
        best = tl.maximum(most, best)
    return best, place


@triton.jit
def mass_over(logits, at, best, inverse, floor, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    """Return the weights of the keys over `at`, together."""
    acc = tl.zeros([BLOCK], tl.float32)
    for start in range(0, VOCAB, BLOCK):
        _, x, keys = load_keys(logits, start, VOCAB, BLOCK)
        acc += tl.where(keys > at, weight_of(x, best, inverse, floor), 0.0)
    return tl.sum(acc.to(tl.float64), 0)


@triton.jit
def cut(logits, low, high, needed, best, inverse, COUNTS: tl.constexpr, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    """Return the greatest key in [low, high), int64, that reaches `needed` with all over it, and the mass of those.

    COUNTS: each token weighs 1.
    """
    above = needed * 0.0
    while high - low > 1:
        pivots = low + tl.maximum((high - low) * (tl.arange(0, 8) + 1).to(tl.int64) // 8, 1)
        acc = tl.zeros([8, BLOCK], tl.float32)
        for start in range(0, VOCAB, BLOCK):
            _, x, keys = load_keys(logits, start, VOCAB, BLOCK)
            weights = tl.full([BLOCK], 1.0, tl.float32) if COUNTS else weight_of(x, best, inverse, -87.0)
            acc += tl.where(keys[None, :] >= pivots[:, None], weights[None, :], 0.0)
        mass = tl.sum(acc.to(tl.float64), 1)
        reached = mass >= needed
        low = tl.max(tl.where(reached, pivots, low), 0)
        high = tl.min(tl.where(reached, high, pivots), 0)
        above = tl.max(tl.where(reached, 0.0, mass), 0)
    return low, above


@triton.jit
def pick(logits, at, ties, target, best, inverse, floor, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    """Return the first token whose cumulative weight exceeds `target`; of those with the key `at` so many count."""
    before = target * 0.0
    seen = tl.full([], 0, tl.int32)
    found = tl.full([], VOCAB, tl.int32)
    last = tl.full([], 0, tl.int32)
    start = tl.full([], 0, tl.int32)
    while (start < VOCAB) & (found == VOCAB):
        tokens, x, keys = load_keys(logits, start, VOCAB, BLOCK)
        equal = (keys == at).to(tl.int32)
        kept = (keys > at) | ((equal > 0) & (seen + tl.cumsum(equal, 0) <= ties))
        weights = tl.where(kept, weight_of(x, best, inverse, floor), 0.0)
        mass = tl.sum(weights, 0).to(tl.float64)
        last = tl.maximum(last, tl.max(tl.where(weights > 0.0, tokens, 0), 0))
        if before + mass > target:
            over = (before + tl.cumsum(weights.to(tl.float64), 0) > target) & (weights > 0.0)
            found = tl.minimum(tl.min(tl.where(over, tokens, VOCAB), 0), last)
        before += mass
        seen += tl.sum(equal, 0)
        start += BLOCK
    return tl.minimum(found, last)


@triton.jit
def draw(logits, heat, top_k, top_p, number, floor, best_key, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    """Return a token of a row whose best logit is finite."""
    best = float_of(best_key)
    inverse = tl.maximum(1.0 / heat, 1e-38).to(tl.float32)
    high = best_key.to(tl.int64) + 1
    at = tl.full([], -0x7F800001, tl.int64)  # the key of -inf
    ties = tl.full([], VOCAB, tl.float64)
    if (top_k > 0) & (top_k < VOCAB):
        at, over = cut(logits, at, high, top_k, best, inverse, True, VOCAB, BLOCK)
        ties = top_k - over
    above = mass_over(logits, at, best, inverse, -87.0, VOCAB, BLOCK)
    weight = weight_of(float_of(at.to(tl.int32)), best, inverse, -87.0).to(tl.float64)
    total = above + ties * weight
    if top_p < 1.0:
        needed = tl.maximum(top_p * total, 1e-300)
        if above >= needed:
            # What weighs less than `least` is left out, since all of it together is less than what is to be left out.
            least = ((1.0 - top_p) * total / (2 * VOCAB)).to(tl.float32)
            bound = best + heat.to(tl.float32) * tl.where(least > 1e-37, tl.log(tl.maximum(least, 1e-37)), -86.0)
            low = tl.minimum(tl.maximum(key_of(bound).to(tl.int64) - 2, at + 1), high - 1)
            at, above = cut(logits, low, high, needed, best, inverse, False, VOCAB, BLOCK)
            weight = weight_of(float_of(at.to(tl.int32)), best, inverse, -87.0).to(tl.float64)
            ties = tl.full([], VOCAB, tl.float64)
        ties = tl.maximum(tl.minimum(tl.ceil((needed - above) / tl.maximum(weight, 1e-300)), ties), 1.0)
        total = above + ties * weight
    if floor > -87.0:
        above = mass_over(logits, at, best, inverse, floor, VOCAB, BLOCK)
        total = above + ties * weight_of(float_of(at.to(tl.int32)), best, inverse, floor).to(tl.float64)
    return pick(logits, at, ties, number * total, best, inverse, floor, VOCAB, BLOCK)


@triton.jit
def sample_kernel(out, logits, how, VOCAB: tl.constexpr, COLDEST: tl.constexpr, BLOCK: tl.constexpr):
    """Write the token of one row of `logits` `[N, VOCAB]`; `how` `[N, 5]` float64 is told in `Ops.sample`."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * VOCAB
    how += row * 5
    temperature = tl.load(how)
    best, token = first_best(logits, VOCAB, BLOCK)
    if (temperature > 0.0) & (best > -0x7F800001) & (best < 0x7F800000):
        heat = tl.maximum(temperature, COLDEST)
        top_k, top_p, number = tl.load(how + 1), tl.load(how + 2), tl.load(how + 3)
        floor = tl.maximum(tl.load(how + 4).to(tl.float32), -87.0)
        token = draw(logits, heat, top_k, top_p, number, floor, best, VOCAB, BLOCK)
    tl.store(out + row, token.to(tl.int64))


def sample_launch(logits: torch.Tensor, how: torch.Tensor) -> tuple[Launch, torch.Tensor]:
    """Prepare the draws from `logits` `[N, V]`, contiguous, as `how` `[N, 5]` float64 says: `[N]` int64."""
    rows, vocab = logits.shape
    out = torch.empty(rows, dtype=torch.int64, device=logits.device)
    arguments = {
        "out": out,
        "logits": logits,
        "how": how,
        "VOCAB": vocab,
        "COLDEST": COLDEST,
        "BLOCK": min(power_of_two(vocab), _MOST),
    }
    return Launch(sample_kernel, (rows,), arguments, num_warps=16), out
