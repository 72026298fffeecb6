"""Grammars over the tiny model's tokens, and random outputs that follow them."""

import random
from functools import cache

import numpy as np
from tokenizers import Tokenizer

from engine.constraints.base import Constraint, Mask
from engine.constraints.compile import open_compiler
from engine.constraints.following import CompiledGrammar
from engine.request import Grammar, GrammarKind
from tests.engine.tiny_model import make_tokenizer

VOCAB_SIZE = 384
ENDS = (2, 0)  # <|im_end|>, <|endoftext|>


@cache
def tokenizer() -> Tokenizer:
    """The tiny model's tokenizer."""
    return make_tokenizer(VOCAB_SIZE)


def tokenizer_json() -> bytes:
    """Its file."""
    return tokenizer().to_str().encode()


def compiled(kind: GrammarKind, text: str) -> CompiledGrammar:
    """Compile a grammar for the tiny model. Raises GrammarError."""
    return open_compiler(tokenizer_json(), VOCAB_SIZE, ENDS)(Grammar(kind, text))


def ids(mask: Mask) -> list[int]:
    """Return the tokens that a mask allows."""
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()


def encode(text: str) -> list[int]:
    """Return a text's tokens."""
    return list(tokenizer().encode(text, add_special_tokens=False).ids)


def decode(tokens: list[int]) -> str:
    """Return the text of tokens, without special ones."""
    return tokenizer().decode(tokens, skip_special_tokens=True)


def wander(constraint: Constraint, seed: int, *, most: int = 400, prompt: tuple[int, ...] = (7, 8)) -> list[int]:
    """Return a random output that follows a constraint, its end token included if it has come to one."""
    chance, tokens = random.Random(seed), list(prompt)
    while len(tokens) < len(prompt) + most:
        token = chance.choice(ids(constraint.mask(tokens, len(prompt))))
        tokens.append(token)
        if token in ENDS:
            break
    return tokens[len(prompt) :]
