"""Random beginnings of outputs: what is too much work only some tokens into an output is found before anybody waits."""

import random

import numpy as np

from engine.constraints.preparing import Compiled

_OUTPUTS, _TOKENS = 3, 16


def try_out(grammar: Compiled, ends: frozenset[int]) -> None:
    """Follow some random outputs of a grammar a little way, the same ones each time.

    Raises:
        GrammarError: one of them cannot go on.
    """
    for seed in range(_OUTPUTS):
        chance, constraint = random.Random(seed), grammar.constraint(ends)
        tokens: list[int] = []
        for _ in range(_TOKENS):
            mask = constraint.mask(tokens, 0)
            token = int(chance.choice(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))))
            if token in ends:
                break
            tokens.append(token)
