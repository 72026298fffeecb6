"""What the front asks its helper about grammars, and what it hears."""

import msgspec

from engine.request import Grammar, GrammarKind


class Question(msgspec.Struct, frozen=True, array_like=True):
    """A grammar to judge; without a kind: are you there?"""

    kind: str = ""
    text: str = ""


class Verdict(msgspec.Struct, frozen=True, array_like=True):
    """What is wrong with it; empty: nothing. `seconds` of processor time were taken to say so."""

    problem: str = ""
    seconds: float = 0.0


encode = msgspec.msgpack.Encoder().encode
decode_question = msgspec.msgpack.Decoder(Question).decode
decode_verdict = msgspec.msgpack.Decoder(Verdict).decode


def question_of(grammar: Grammar) -> Question:
    """Return the question about a grammar."""
    return Question(grammar.kind, grammar.text)


def grammar_of(question: Question) -> Grammar:
    """Return the grammar of a question. Raises ValueError for a kind that is none."""
    return Grammar(GrammarKind(question.kind), question.text)
