"""A model's tokens as grammars see them, and masks over them.

The model's logits and its tokenizer may differ in size. A token that only the tokenizer knows cannot be sampled; one
that only the model has stands for no text, so no grammar allows it.
"""

from collections.abc import Sequence

import numpy as np
from llguidance import LLMatcher, LLTokenizer

from engine.constraints.base import Mask
from engine.constraints.masks import BITS, allows
from engine.errors import GrammarError


class Vocabulary:
    """One model's. Takes about a second and some tens of megabytes to make."""

    def __init__(self, tokenizer_json: bytes, size: int, eos_token_ids: Sequence[int]) -> None:
        """Read the tokenizer.

        Args:
            tokenizer_json: the file of that name.
            size: logits of the model.
            eos_token_ids: what ends an output.

        Raises:
            GrammarError: no grammar can be followed with this model.
        """
        ends = [token for token in eos_token_ids if token < size]
        if not ends:
            raise GrammarError("this model has no end token, so no output could end with its grammar")
        self.tokenizer = _read(tokenizer_json.decode().lstrip(), size, ends)
        self.size = size
        self._end = ends[0]
        self._num_words = -(-size // BITS)
        self._num_filled_words = -(-self.tokenizer.vocab_size // BITS)
        self._last_word = (1 << BITS) - 1 if size % BITS == 0 else (1 << size % BITS) - 1

    def new_words(self) -> Mask:
        """Return room for what `fill` writes."""
        return np.zeros(self._num_filled_words, dtype=np.uint32)

    def fill(self, matcher: LLMatcher, words: Mask, address: int) -> Mask:
        """Write which tokens a matcher allows next and return the mask, a view of `words`.

        Args:
            matcher: has taken all tokens so far.
            words: of `new_words`.
            address: where they are; to ask for it takes as long as many a mask.
        """
        matcher.unsafe_compute_mask_ptr(address, words.nbytes)
        mask = words[: self._num_words]
        mask[-1] &= self._last_word
        return mask

    def may_end(self, mask: Mask) -> bool:
        """Say whether a mask allows the output to end."""
        return allows(mask, self._end)


def is_panic(error: BaseException) -> bool:
    """Say whether the library has broken: what it throws then is no Exception, and has no name to import."""
    return type(error).__name__ == "PanicException"


def _read(tokenizer_json: str, size: int, ends: list[int]) -> LLTokenizer:
    try:
        return LLTokenizer(tokenizer_json, n_vocab=size, eos_token=ends)
    except BaseException as error:  # the tokenizer has more tokens than the model, or cannot be read at all
        if not (isinstance(error, ValueError) or is_panic(error)):
            raise
    try:
        return LLTokenizer(tokenizer_json, eos_token=ends)
    except BaseException as error:
        if not (isinstance(error, ValueError) or is_panic(error)):
            raise
        raise GrammarError(f"this model's tokenizer cannot be used with grammars: {error}") from error
