"""Tokens of the step before, where a plan was made without knowing them: put in on the device, without a wait."""

from typing import Any

import numpy as np
import torch

from engine.errors import CoreError


class LastTokens:
    """What the step launched last has sampled. See `engine.step.placeholder`."""

    def __init__(self, max_tokens: int, device: torch.device) -> None:
        self._tokens = torch.zeros(max_tokens, dtype=torch.int64, device=device)  # one place: graphs read it
        self._count = 0

    def keep(self, tokens: torch.Tensor) -> None:
        """Take the tokens `[N]` int64 of a step."""
        self._count = tokens.shape[0]
        self._tokens[: self._count].copy_(tokens)

    def asked_for(self, token_ids: "np.ndarray[Any, Any]", step: int) -> bool:
        """Whether there are placeholders in a step's token ids, on the host.

        Raises:
            CoreError: one that stands for no token.
        """
        lowest = int(token_ids.min())
        if lowest >= 0:
            return False
        if -lowest > self._count:
            raise CoreError(
                f"step {step} asks for token {-1 - lowest} of the step before it, which sampled {self._count}"
            )
        return True

    def put_in(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Return token ids `[T]` int64 with the tokens in place of placeholders."""
        index = (-1 - token_ids).clamp_(min=0)
        return torch.where(token_ids < 0, self._tokens[index], token_ids)
