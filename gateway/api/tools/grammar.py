"""The grammar that keeps an output to calls in the model's own form, in the Lark form of llguidance.

Where content is allowed too, it is any text that begins no call: what the parser would take for one is one.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from gateway.api.functions import Function
from gateway.api.schema_limits import without_altered

# What may give an object more properties than its `properties` name.
_MORE = {"additionalProperties", "patternProperties", "unevaluatedProperties", "allOf", "anyOf", "oneOf", "$ref"}

# As templates write JSON, and so as models have learned it. Free white space would let a weak one write nothing else.
_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}

FIRST_SCHEMA = 2  # the line with the first function's schema; the others follow, each on its own


class Grammar:
    """A grammar in the making. Functions' arguments come first in it, so that a problem's line says whose it is.

    Args:
        special: ids of markers that are tokens of their own, which no text matches.
        exact: arguments are kept to the functions' schemas; otherwise only those of `strict` functions are, and those
            of others may be any object.
    """

    def __init__(self, special: Mapping[str, int], *, exact: bool) -> None:
        self._special = special
        self._exact = exact
        self._rules: list[str] = []
        self._num_calls = 0

    def rule(self, name: str, body: str) -> str:
        """Add a rule; return its name."""
        self._rules.append(f"{name}: {body}")
        return name

    def lexeme(self, name: str, pattern: str) -> str:
        """Add a regular expression under a name in capitals; return the name."""
        return self.rule(name, pattern)

    def lazy(self, name: str, pattern: str) -> str:
        """Add a regular expression that matches as little as it can; return its name."""
        self._rules.append(f"{name}[lazy]: {pattern}")
        return name

    def marker(self, text: str) -> str:
        """Return what stands for a marker in a rule."""
        return f"<[{self._special[text]}]>" if text in self._special else literal(text)

    def is_special(self, text: str) -> bool:
        """Return whether a marker is a token that no text matches."""
        return text in self._special

    def arguments(self, function: Function) -> str:
        """Return the name of a function's arguments."""
        self._num_calls += 1
        schema = json.dumps(_schema(function, exact=self._exact), ensure_ascii=False)
        return self.rule(f"arguments_{self._num_calls}", f"%json {schema}")

    def one_of(self, bodies: Sequence[str]) -> str:
        """Return the name of what is one of `bodies`."""
        return self.rule("function", " | ".join(bodies))

    def text(self, start: str) -> str:
        """Return the whole, of which `start` is the beginning."""
        return "\n".join([f"start: {start}", *self._rules, ""])


def literal(text: str) -> str:
    """Return a text as a rule has it."""
    return json.dumps(text, ensure_ascii=False)


def escaped(text: str) -> str:
    """Return a text as a regular expression between slashes has it."""
    return re.escape(text).replace("/", r"\/")


def _schema(function: Function, *, exact: bool) -> dict[str, Any]:
    if not exact and not function.strict:
        schema: dict[str, Any] = {"type": "object"}
    elif function.parameters is None:
        schema = {"type": "object", "properties": {}, "additionalProperties": False}
    else:
        schema = _closed({"type": "object", **function.parameters})
    # OpenAI takes any schema of a function that isn't strict, and promises nothing.
    if function.strict:
        return schema | {"x-guidance": _STYLE}
    kept: dict[str, Any] = without_altered(schema)
    return kept | {"x-guidance": _STYLE | {"lenient": True}}


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that allows the properties that are named, and no others where it says nothing of others.

    What it allows the given one allows too; a weak model would fill calls with properties of its own.
    """
    named, required = schema.get("properties"), schema.get("required", [])
    if not isinstance(named, dict) or not isinstance(required, list) or not _MORE.isdisjoint(schema):
        return schema
    return schema | {"additionalProperties": False} if all(one in named for one in required) else schema
