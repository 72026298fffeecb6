"""What a scheduler sees of a grammar that an output must follow."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt


class Constraint(Protocol):
    """How far one output has come in its grammar. One for each output: no two share any state."""

    def mask(self, tokens: Sequence[int], num_prompt: int) -> npt.NDArray[np.uint32]:
        """Return which tokens may come next, as `engine.step.StepOptions.mask`.

        Args:
            tokens: prompt and output, those that it has seen before included.
            num_prompt: of them, the prompt.
        """
        ...
