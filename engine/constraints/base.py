"""What a scheduler sees of the grammars that outputs must follow."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from engine.request import Grammar

Mask = npt.NDArray[np.uint32]


class Constraint(Protocol):
    """How far one output has come in its grammar. One for each output: no two share any state."""

    seconds: float  # of processor time that a mask has taken lately, more than less; of the first ones, to expect

    def follow(self, tokens: Sequence[int], num_prompt: int, most: int) -> Sequence[int]:
        """Take the tokens that have come, and those that must come next whatever is sampled; make the mask behind them.

        Args:
            tokens: prompt and output, those that it has seen before included.
            num_prompt: of them, the prompt.
            most: tokens that may be taken ahead; never one that ends the output.

        Returns:
            The tokens that it has taken ahead: they are the output's next ones. None where no token was new.

        Raises:
            GrammarError: the output cannot go on.
        """
        ...

    def mask(self, tokens: Sequence[int], num_prompt: int) -> Mask:
        """Return which tokens may come next, as `engine.step.StepOptions.mask`; end tokens where the grammar may end.

        The same tokens again get the same mask, at no cost. It is good until more tokens are given.

        Args:
            tokens: prompt and output, those that it has seen before included.
            num_prompt: of them, the prompt.

        Raises:
            GrammarError: the output cannot go on; never where a mask was returned for the same tokens.
        """
        ...

    def another(self) -> "Constraint":
        """Return one for another output of the same request, at its beginning."""
        ...


class Preparation(Protocol):
    """A grammar on its way to being usable. Whoever shares it sees it become so."""

    @property
    def is_done(self) -> bool:
        """Whether it is prepared, or never will be."""
        ...

    @property
    def problem(self) -> str:
        """Why it never will be, once it is done; empty: it can be used."""
        ...

    def constraint(self, ends: frozenset[int]) -> Constraint:
        """Return a constraint for an output, at its beginning; only where it is done, without a problem.

        Args:
            ends: the tokens that end the output, allowed wherever the grammar may end.
        """
        ...


class Grammars(Protocol):
    """Prepares grammars beside the loop."""

    def prepare(self, tenant: str, grammar: Grammar) -> Preparation:
        """Begin to prepare a tenant's grammar, unless the tenant has it at hand; returns at once."""
        ...
