"""The forms that models write calls in. Where does mine go? Here, and into detect.py.

Hermes    <tool_call>\n{"name": "f", "arguments": {...}}\n</tool_call>   Qwen, Hermes, and whoever is told how
Mistral   [TOOL_CALLS] [{"name": "f", "arguments": {...}}]
Named     [TOOL_CALLS]f[ARGS]{...}                                       newer Mistrals
Llama     {"name": "f", "parameters": {...}}                             perhaps after <|python_tag|>
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from gateway.api.functions import Function
from gateway.api.tools.call import ARGUMENTS
from gateway.api.tools.grammar import Grammar, escaped, literal
from gateway.api.tools.parser import Syntax

_ID_LENGTH = 9
_ID_CHARACTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
_OBJECT_HEAD = '{"name": "%s", "arguments": '


class Form(ABC):
    """A way of writing calls. `single`: the model's template takes one call a message."""

    syntax: ClassVar[Syntax]

    def __init__(self, *, single: bool = False) -> None:
        self.single = single

    @property
    def markers(self) -> tuple[str, ...]:
        """What the worker is to send as text, also where it is a special token."""
        return (*self.syntax.opens, self.syntax.close) if self.syntax.close else self.syntax.opens

    def call_id(self, given: str) -> str:
        """Return a call's id as the model's template takes it."""
        return given

    @abstractmethod
    def calls(self, grammar: Grammar, functions: Sequence[Function], *, most: int) -> str:
        """Return what an output of calls and nothing else is: of at least one and at most `most`, and then its end."""

    @abstractmethod
    def mixed(self, grammar: Grammar, functions: Sequence[Function], *, most: int) -> str:
        """Return what an output that may have text, calls, or both is; at most `most` calls."""


class Marked(Form):
    """A form whose calls follow a marker. `separator` is between two that have one each; None: one marker for all."""

    separator: ClassVar[str | None] = ""

    def calls(self, grammar: Grammar, functions: Sequence[Function], *, most: int) -> str:
        """Return what an output of calls and nothing else is."""
        body = self.body(grammar, functions, most=most)
        call = grammar.rule("call", f"{grammar.marker(self.syntax.opens[0])} {body}")
        if most == 1 or self.separator is None:
            return call
        separator = f"{literal(self.separator)} " if self.separator else ""
        return call + more(separator + call, most)

    def mixed(self, grammar: Grammar, functions: Sequence[Function], *, most: int) -> str:
        """Return what an output of text and of calls between it is."""
        opening = self.syntax.opens[0]
        body = self.body(grammar, functions, most=most)
        if grammar.is_special(opening):
            text = grammar.lexeme("TEXT", "/(?s:.*)/")  # which no special token is
            call = grammar.rule("call", f"{text} {grammar.marker(opening)} {body}")
        else:
            text = grammar.lexeme("TEXT", f"/(?s:.*)/ & ~/(?s:.*){escaped(opening)}(?s:.*)/")
            head = grammar.lazy("head", f"/(?s:.*){escaped(opening)}/")
            call = grammar.rule("call", f"{head} {body}")
        return f"{call}{{0,{most}}} {text}" if most > 1 and self.separator is not None else f"{call} | {text}"

    @abstractmethod
    def body(self, grammar: Grammar, functions: Sequence[Function], *, most: int) -> str:
        """Return what follows a marker."""


class Hermes(Marked):
    """Each call in a pair of tags."""

    syntax = Syntax(opens=("<tool_call>",), close="</tool_call>")
    separator = "\n"

    def body(self, grammar: Grammar, functions: Sequence[Function], *, most: int) -> str:
        """Return a call and the closing tag."""
        call = grammar.one_of(
            [f'{literal(_OBJECT_HEAD % one.name)} {grammar.arguments(one)} "}}"' for one in functions]
        )
        return f"{literal(chr(10))} {call} {literal(chr(10))} {grammar.marker(self.syntax.close)}"


class Mistral(Marked):
    """A list of calls."""

    syntax = Syntax(opens=("[TOOL_CALLS]",))
    separator = None

    def __init__(self, *, single: bool = False, space: str = " ") -> None:
        super().__init__(single=single)
        self._space = space  # between the marker and the list

    def call_id(self, given: str) -> str:
        """Return nine letters and digits, on which these templates insist."""
        return short_id(given)

    def body(self, grammar: Grammar, functions: Sequence[Function], *, most: int) -> str:
        """Return the list."""
        call = grammar.one_of(
            [f'{literal(_OBJECT_HEAD % one.name)} {grammar.arguments(one)} "}}"' for one in functions]
        )
        rest = more(f'", " {call}', most)
        return f'{literal(self._space + "[")} {call}{rest} "]"'


class Named(Marked):
    """A name, then its arguments."""

    syntax = Syntax(opens=("[TOOL_CALLS]",), named=True)

    @property
    def markers(self) -> tuple[str, ...]:
        """What the worker is to send as text, also where it is a special token."""
        return (*self.syntax.opens, "[CALL_ID]", "[ARGS]")

    def call_id(self, given: str) -> str:
        """Return nine letters and digits, on which these templates insist."""
        return short_id(given)

    def body(self, grammar: Grammar, functions: Sequence[Function], *, most: int) -> str:
        """Return a name and arguments."""
        between = grammar.marker("[ARGS]")
        return grammar.one_of([f"{literal(one.name)} {between} {grammar.arguments(one)}" for one in functions])


class Llama(Form):
    """Calls at the beginning of the output; where there is one, there is nothing else."""

    syntax = Syntax(opens=("<|python_tag|>",), bare=True)

    def calls(self, grammar: Grammar, functions: Sequence[Function], *, most: int) -> str:
        """Return what an output of calls and nothing else is."""
        heads = [literal(f'{{"name": "{one.name}", "parameters": ') for one in functions]
        pairs = zip(heads, functions, strict=True)
        call = grammar.one_of([f'{head} {grammar.arguments(one)} "}}"' for head, one in pairs])
        return grammar.rule("calls", call + more(f'"; " {call}', most))

    def mixed(self, grammar: Grammar, functions: Sequence[Function], *, most: int) -> str:
        """Return what an output of text or of calls is."""
        calls = self.calls(grammar, functions, most=most)
        # What the parser would take for a call, however it is spaced, is no text: so it is one that follows the rules.
        names = "|".join(escaped(function.name) for function in functions)
        words = "|".join(ARGUMENTS)
        text = grammar.lexeme(
            "TEXT", rf'/(?s:.*)/ & ~/[\s\[]*\{{\s*"(name"\s*:\s*"({names})"|type"\s*:\s*"function"|({words})")(?s:.*)/'
        )
        opening = self.syntax.opens[0]
        tagged = f" | {grammar.marker(opening)} {calls}" if grammar.is_special(opening) else ""
        return f"{calls}{tagged} | {text}"


def more(item: str, most: int) -> str:
    """Return what may follow the first of at most `most` calls: each an `item`, separator included."""
    return f" ({item}){{0,{most - 1}}}" if most > 1 else ""


def short_id(given: str) -> str:
    """Return nine letters and digits that stand for an id: always the same ones."""
    if len(given) == _ID_LENGTH and given.isascii() and given.isalnum():
        return given
    number = int.from_bytes(hashlib.sha256(given.encode("utf-8", "surrogatepass")).digest()[:8], "big")
    letters = []
    for _ in range(_ID_LENGTH):
        number, index = divmod(number, len(_ID_CHARACTERS))
        letters.append(_ID_CHARACTERS[index])
    return "".join(letters)
