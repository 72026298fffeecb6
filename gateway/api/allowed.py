"""Which values a field of a request may have, read from the types: for the message about one that it may not. Pure."""

import re
from collections.abc import Hashable, Iterable, Iterator
from functools import lru_cache
from typing import cast

import msgspec
from msgspec import inspect

MAX_LISTED = 300  # characters of a message that list values

_STEP = re.compile(r"\[(\d+|\.\.\.)\]|[^.\[\]]+")


def allowed(kind: type[object], path: str) -> str:
    """Return the values that a field may have, as a message lists them; empty: its type names none.

    Args:
        kind: the Struct of the whole request.
        path: of the field, as msgspec writes it, without the `$`: `messages[0].content[1].type`.
    """
    kinds = _alternatives(_tree(cast(Hashable, kind)))
    steps = [match[0] for match in _STEP.finditer(path)]
    values: list[object] = []
    for number, step in enumerate(steps, start=1):
        if number == len(steps):
            values = [one.tag for one in kinds if isinstance(one, inspect.StructType) and one.tag_field == step]
        kinds = [inner for one in kinds for inner in _inside(one, step)]
    values += [value for one in kinds for value in _values(one)]
    if not values:
        return ""
    objects = any(isinstance(one, inspect.StructType | inspect.DictType) for one in kinds)
    return _listed(values, last="an object" if objects else "")


@lru_cache(maxsize=64)  # there are few kinds of requests
def _tree(kind: Hashable) -> inspect.Type:
    return inspect.type_info(kind)


def _alternatives(one: inspect.Type) -> list[inspect.Type]:
    """Return what a value may be; a type with bounds or a default is the type within."""
    if isinstance(one, inspect.Metadata):
        return _alternatives(one.type)
    if isinstance(one, inspect.UnionType):
        return [inner for each in one.types for inner in _alternatives(each)]
    return [one]


def _inside(one: inspect.Type, step: str) -> Iterator[inspect.Type]:
    """Yield what may stand within a value at one step of a path."""
    if isinstance(one, inspect.StructType):
        for field in one.fields:
            if field.encode_name == step:
                yield from _alternatives(field.type)
    elif step.startswith("[") and isinstance(one, inspect.ListType | inspect.VarTupleType):
        yield from _alternatives(one.item_type)
    elif step == "[...]" and isinstance(one, inspect.DictType):
        yield from _alternatives(one.value_type)


def _values(one: inspect.Type) -> Iterable[object]:
    if isinstance(one, inspect.LiteralType):
        return one.values
    return [member.value for member in one.cls] if isinstance(one, inspect.EnumType) else ()


def _listed(values: Iterable[object], *, last: str) -> str:
    """Return values as JSON, joined to a list of bounded length, with `last` behind them."""
    words: list[str] = []
    left = MAX_LISTED
    for word in dict.fromkeys(msgspec.json.encode(value).decode() for value in values):
        left -= len(word) + 2
        if left < 0:
            return f"{', '.join(words)}, …"
        words.append(word)
    if last:
        words.append(last)
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
