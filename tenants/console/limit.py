"""Where the parts of a limit bar lie, in per cent of its length.

`frontend/src/lib/limit.ts` moves the same parts live; `limit.cases.json` beside it holds both to one layout.
"""

import math
from typing import NamedTuple


class LimitParts(NamedTuple):
    """Lengths of the use's three parts, what of it is only cached, and the places of the two marks."""

    used: float  # what lies within the soft limit
    borrowed: float  # what lies between soft and hard
    over: float  # what lies above hard until it has settled
    held: float  # where what requests hold ends and what is only cached begins
    cached: float  # the length of that, up to the end of the use: it is what gives way first
    soft: float
    hard: float


def limit_parts(use: int, soft: int, hard: int, *, cached: int = 0, span: int = 0) -> LimitParts:
    """Lay out `use` against `soft` and `hard` (bytes); the bar ends at the largest of `use`, `hard` and `span`.

    `cached` is the part of `use` that no request holds.
    """
    scale = max(use, hard, span, 1)
    held = use - min(max(cached, 0), use)
    within = min(use, soft, hard)
    borrowed = max(0, min(use, hard) - within)

    def per(amount: int) -> float:
        return math.floor(amount / scale * 10_000 + 0.5) / 100

    return LimitParts(
        used=per(within),
        borrowed=per(borrowed),
        over=per(max(0, use - hard)),
        held=per(held),
        cached=per(use - held),
        soft=per(min(soft, scale)),
        hard=per(hard),
    )
