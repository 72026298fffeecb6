"""One output on its way through a grammar."""

import time
from collections.abc import Sequence
from itertools import takewhile

from llguidance import LLMatcher

from engine.constraints.base import Mask
from engine.constraints.masks import allow
from engine.constraints.vocabulary import Vocabulary, is_panic
from engine.errors import GrammarError, InvariantError

_FIRST_SECONDS = 0.001  # to expect of a first mask, which finds nothing that was worked out before
_FADE = 0.8  # of what a mask has taken, from one to the next: who was slow once may be again
_MAX_REASON = 300  # characters of the library's explanation


class CompiledGrammar:
    """A grammar with its matcher at the beginning, of which every output follows a copy."""

    def __init__(self, vocabulary: Vocabulary, matcher: LLMatcher) -> None:
        """Take the matcher over.

        Raises:
            GrammarError: already its beginning is too much work, or leads nowhere.
        """
        self.vocabulary = vocabulary
        self._matcher = matcher
        words = vocabulary.new_words()
        self.first = _mask(vocabulary, matcher, words, words.ctypes.data)
        self.first.flags.writeable = False

    def matcher(self) -> LLMatcher:
        """Return a matcher at the beginning."""
        return self._matcher.deep_copy()

    def constraint(self, ends: frozenset[int]) -> "Following":
        """Return a constraint at the beginning."""
        return Following(self, ends)


class Following:
    """Implements `Constraint`. Has a matcher and a mask of its own from the output's first token on."""

    __slots__ = ("_address", "_ends", "_grammar", "_mask", "_matcher", "_num_seen", "_words", "seconds")

    def __init__(self, grammar: CompiledGrammar, ends: frozenset[int]) -> None:
        self.seconds = _FIRST_SECONDS
        self._grammar = grammar
        self._ends = ends
        self._matcher: LLMatcher | None = None
        self._num_seen = 0  # tokens of the output
        self._mask = grammar.first
        if grammar.vocabulary.may_end(grammar.first):
            self._mask = grammar.first.copy()
            allow(self._mask, ends)

    def another(self) -> "Following":
        """Return one at the beginning."""
        return Following(self._grammar, self._ends)

    def mask(self, tokens: Sequence[int], num_prompt: int) -> Mask:
        """Return which tokens may come next; see `Constraint.mask`."""
        self.follow(tokens, num_prompt, 0)
        return self._mask

    def follow(self, tokens: Sequence[int], num_prompt: int, most: int) -> Sequence[int]:
        """Take tokens, and those that must come next; see `Constraint.follow`."""
        num_output = len(tokens) - num_prompt
        if num_output == self._num_seen:
            return ()
        if num_output < self._num_seen:
            raise InvariantError(f"an output of {self._num_seen} tokens has {num_output}")
        began = time.thread_time()
        try:
            forced = self._take(list(tokens[num_prompt + self._num_seen :]), most)
        except BaseException as error:
            if not is_panic(error):
                raise
            raise GrammarError(f"the grammar cannot be followed: {error}") from error
        self._num_seen = num_output + len(forced)
        self.seconds = max(time.thread_time() - began, self.seconds * _FADE)
        return forced

    def _take(self, tokens: list[int], most: int) -> list[int]:
        vocabulary = self._grammar.vocabulary
        if self._matcher is None:
            self._matcher = self._grammar.matcher()
            self._words = vocabulary.new_words()
            self._address = self._words.ctypes.data
        if not self._matcher.consume_tokens(tokens):
            raise GrammarError(f"the output does not follow its grammar: {reason(self._matcher)}")
        forced = self._forced(self._matcher, most)
        self._mask = _mask(vocabulary, self._matcher, self._words, self._address)
        if vocabulary.may_end(self._mask):
            allow(self._mask, self._ends)
        return forced

    def _forced(self, matcher: LLMatcher, most: int) -> list[int]:
        """Take the tokens ahead that spell what must come next, as the tokenizer would."""
        if not most:
            return []
        vocabulary, ends = self._grammar.vocabulary, self._ends
        forced = list(takewhile(lambda one: one not in ends and one < vocabulary.size, matcher.compute_ff_tokens()))[
            :most
        ]
        if forced and not matcher.consume_tokens(forced):
            raise GrammarError(f"the grammar cannot be followed: {reason(matcher)}")
        return forced


def reason(matcher: LLMatcher) -> str:
    """Return why a matcher has failed, fit for whoever wrote the grammar."""
    text = " ".join(matcher.get_error().replace("<non-verbose/>", "").split())
    if text == "NoExtensionBias":
        return "no text can come next"
    return text if len(text) <= _MAX_REASON else f"{text[:_MAX_REASON]}…"


def _mask(vocabulary: Vocabulary, matcher: LLMatcher, words: Mask, address: int) -> Mask:
    mask = vocabulary.fill(matcher, words, address)
    if matcher.is_error():
        raise GrammarError(f"the grammar cannot be followed: {reason(matcher)}")
    return mask
