"""A grammar without a library: each token is of the next of three kinds, and after so many tokens only the end is left.

Its text says how many: "5" is a grammar of five tokens, "5?" of five at most, which may end sooner. "bad" is none, and
"3!" cannot be followed beyond three. Of "20+" three tokens are free, the next three must be what they are, and so on.
With "slow" before it every mask but the first takes until a gate is open.
"""

import threading
from collections.abc import Sequence

import numpy as np

from engine.constraints.base import Mask
from engine.errors import GrammarError
from engine.request import Grammar, GrammarKind

KINDS = 3
RUN = 3  # tokens that are free, and then as many that are not
VOCAB_SIZE = 1000
DEADLINE_SECONDS = 60


def alternating(text: str) -> Grammar:
    """Return the grammar of this text."""
    return Grammar(GrammarKind.LARK, text)


def follows(tokens: Sequence[int], first: int = 0) -> bool:
    """Say whether tokens are of the next kind each, from kind `first` on."""
    return all(token % KINDS == (first + place) % KINDS for place, token in enumerate(tokens))


class Alternating:
    """Implements `Constraint`, and watches how it is used."""

    def __init__(self, text: str, ends: frozenset[int], gate: threading.Event | None = None) -> None:
        self._is_slow = text.startswith("slow")
        self.seconds = 1.0 if self._is_slow else 0.0
        self._gate = gate or threading.Event()
        self._given, text = text, text.removeprefix("slow")
        self._text = text
        self._ends = ends
        self._seen: list[int] = []
        self._failed = False

    def follow(self, tokens: Sequence[int], num_prompt: int, most: int) -> Sequence[int]:
        """Take tokens, and the one that must come next where the text says so."""
        is_new = len(tokens) - num_prompt != len(self._seen)
        self.mask(tokens, num_prompt)
        forced = self._forced(most) if is_new else []
        if forced:
            self.mask([*tokens, *forced], num_prompt)
        return forced

    def mask(self, tokens: Sequence[int], num_prompt: int) -> Mask:
        """Return the mask, of ends too where the output may end."""
        output = list(tokens[num_prompt:])
        assert output[: len(self._seen)] == self._seen, "what it has seen has changed"
        assert not self._failed, "it is asked again after it has failed"
        assert follows(output), "a token was chosen that the mask forbids"
        if self._is_slow and output != self._seen:
            assert threading.current_thread() is not threading.main_thread(), "the loop waits for a slow mask"
            assert self._gate.wait(DEADLINE_SECONDS)
        self._seen = output
        most = self._most
        if self._text.endswith("!") and len(output) >= max(1, most):
            self._failed = True
            raise GrammarError(f"cannot be followed beyond {most} tokens")
        allowed = np.zeros(-(-VOCAB_SIZE // 32) * 32, dtype=np.uint8)
        only = self._only(len(output))
        if only is not None:
            allowed[only] = 1
        elif len(output) < most:
            allowed[len(output) % KINDS : VOCAB_SIZE : KINDS] = 1
            allowed[list(self._ends)] = 0
        if len(output) >= most or self._text.endswith("?"):
            allowed[list(self._ends)] = 1
        return np.packbits(allowed, bitorder="little").view(np.uint32)

    @property
    def _most(self) -> int:
        return int(self._text.rstrip("!?+"))

    def _only(self, place: int) -> int | None:
        """Return the token that must be at a place of the output; None: several may be, or an end."""
        if not self._text.endswith("+") or place >= self._most or place % (2 * RUN) < RUN:
            return None
        only = place % KINDS + KINDS * (place % 50)
        return None if only in self._ends else only

    def _forced(self, most: int) -> list[int]:
        forced: list[int] = []
        while len(forced) < most and (only := self._only(len(self._seen) + len(forced))) is not None:
            forced.append(only)
        return forced

    def another(self) -> "Alternating":
        """Return one at the beginning."""
        return Alternating(self._given, self._ends, self._gate)


class Prepared:
    """Implements `Preparation`; done when the test says so."""

    def __init__(self, text: str, *, is_done: bool, gate: threading.Event | None = None) -> None:
        self.text = text
        self.is_done = is_done
        self.looks_left = -1  # how often one may look before it is done; -1: it makes no difference
        self._gate = gate

    @property
    def is_done(self) -> bool:
        """Whether it is prepared; it may become so from one look to the next, as a thread may have it."""
        if self.looks_left == 0:
            self._is_done = True
        self.looks_left -= self.looks_left > 0
        return self._is_done

    @is_done.setter
    def is_done(self, is_done: bool) -> None:
        self._is_done = is_done

    @property
    def problem(self) -> str:
        """What is wrong, once it is done."""
        return "it is bad" if self._is_done and self.text == "bad" else ""

    def constraint(self, ends: frozenset[int]) -> Alternating:
        """Return a constraint at the beginning."""
        assert self._is_done
        assert not self.problem
        return Alternating(self.text, ends, self._gate)


class AlternatingGrammars:
    """Implements `Grammars`; with `late` nothing is prepared until the test says so."""

    def __init__(self, *, late: bool = False) -> None:
        self._late = late
        self.gate = threading.Event()
        self.prepared: dict[str, Prepared] = {}

    def prepare(self, tenant: str, grammar: Grammar) -> Prepared:
        """Return what is being prepared, for whichever tenant."""
        return self.prepared.setdefault(grammar.text, Prepared(grammar.text, is_done=not self._late, gate=self.gate))

    def finish(self, text: str) -> None:
        """Have a grammar prepared."""
        self.prepared[text].is_done = True
