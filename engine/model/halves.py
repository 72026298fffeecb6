"""A model of `transformers` in two halves, so that either can be had alone: up to its head, and the head with all that
its class does to the logits.

    hidden = halves.hidden(run)          # what the decoder inside returned while `run` ran the whole
    logits = halves.logits(hidden)       # the whole again, with that in place of what the decoder would return

`hidden_size` of engine.model.trial tells whether the two come to what the whole does.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from transformers import PreTrainedModel

from engine.errors import ModelError


class Halves:
    """Sits between the class of a causal LM and the decoder inside. What it keeps it lets go of at once."""

    def __init__(self, model: PreTrainedModel) -> None:
        """Take the place of the decoder's forward, if there is a decoder inside."""
        decoder: Any = model.get_decoder()
        self._model = model
        self._kept: Any = None  # the decoder's last result
        self._instead: Any = None  # what it returns without computing anything
        self._keeps = False
        compute = decoder.forward

        @wraps(compute)
        def forward(*args: Any, **kwargs: Any) -> Any:
            if self._instead is not None:
                return self._instead
            result = compute(*args, **kwargs)
            if self._keeps:
                self._kept = result
            return result

        if decoder is not model:
            decoder.forward = forward

    def hidden(self, run: Callable[[], object]) -> torch.Tensor:
        """Return the hidden states of a run of the whole model with one sequence of T tokens, `[T, H]`.

        Raises:
            ModelError: its class has no decoder inside, or does not run it.
        """
        kept = self._keep(run)
        states: torch.Tensor = kept[0][0]
        return states

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the logits of hidden states `[N, H]`: `[N, vocab]`."""
        self._instead = _Result(hidden[None])
        try:
            tokens = torch.zeros((1, len(hidden)), dtype=torch.int64, device=hidden.device)
            logits: torch.Tensor = self._model(tokens, position_ids=tokens, use_cache=False).logits[0]
        finally:
            self._instead = None
        return logits

    def _keep(self, run: Callable[[], object]) -> Any:
        self._keeps = True
        try:
            run()
            kept, self._kept = self._kept, None
        finally:
            self._keeps = False
        if kept is None:
            raise ModelError("its class does not run a decoder inside")
        return kept


class _Result:
    """Hidden states as a decoder returns them, and nothing of all else that it could."""

    def __init__(self, hidden: torch.Tensor) -> None:
        self.last_hidden_state = hidden

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)

    def __getitem__(self, index: Any) -> Any:
        return (self.last_hidden_state,)[index]
