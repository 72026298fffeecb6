"""What a schema says and no grammar can be kept to exactly is refused; what is taken is kept to, to the last digit."""

import json
import random
import re
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from functools import cache
from typing import Any

import pytest

from engine.constraints.compile import open_compiler
from engine.errors import GrammarError
from engine.request import Grammar, GrammarKind
from gateway.api.errors import BadRequest
from gateway.api.formats import Formatted
from gateway.api.functions import Function, FunctionTool
from gateway.api.schema_limits import check_schema, without_altered
from gateway.api.tools.checks import check_tools
from tests.engine.constraints.vocabularies import ENDS, VOCAB_SIZE, decode, tokenizer_json, wander

BIG = 2**53 + 1


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"const": BIG}, "const"),
        ({"const": -BIG}, "const"),
        ({"const": {"id": [BIG]}}, "const"),
        ({"enum": [1, "a", 10**30]}, "enum"),
        ({"type": "integer", "minimum": 2**64}, "minimum"),
        ({"type": "integer", "maximum": 2**63 - 1}, "maximum"),
        ({"type": "number", "exclusiveMaximum": 1e300}, "exclusiveMaximum"),
        ({"type": "number", "exclusiveMinimum": -1e16}, "exclusiveMinimum"),
        ({"type": "integer", "multipleOf": 2**60}, "multipleOf"),
        ({"type": "string", "maxLength": 2**60}, "maxLength"),
        ({"const": 123456789012345.67}, "const"),
        ({"type": "number", "minimum": 1e-30}, "minimum"),
        ({"properties": {"const": {"const": BIG}}}, "properties.const.const"),
        ({"$defs": {"a": {"anyOf": [{}, {"items": {"enum": [BIG]}}]}}}, "$defs.a.anyOf.1.items.enum"),
        ({"patternProperties": {"^a$": {"enum": [1]}}, "minProperties": 2}, "minProperties"),
        ({"type": "object", "minProperties": 2}, "minProperties"),
        ({"required": ["a"], "minProperties": 3, "additionalProperties": {"type": "null"}}, "minProperties"),
    ],
)
def test_what_cannot_be_kept_is_named(schema: dict[str, Any], path: str) -> None:
    """The message names the place within the schema, whatever surface has it."""
    parameters = {"type": "object", "properties": {"a": schema}}
    requests: list[tuple[str, str, Callable[[], object]]] = [
        ("f", path, lambda: check_schema(schema, "f")),
        ("guided_json", path, lambda: Formatted(guided_json=schema).asked_format()),
        ("guided_json", path, lambda: Formatted(guided_json=json.dumps(schema)).asked_format()),
        (
            "tools[0].function.parameters",
            f"properties.a.{path}",
            lambda: check_tools([FunctionTool(Function("f", parameters=parameters, strict=True))], None),
        ),
    ]
    for field, place, request in requests:
        with pytest.raises(BadRequest) as caught:
            request()
        assert caught.value.param == field
        assert f"`{place}`" in caught.value.message


@pytest.mark.parametrize(
    "schema",
    [
        {"const": 2**53},
        {"enum": [-(2**53), 0.1, True, None, "9007199254740993"]},
        {"type": "integer", "minimum": -(2**53 - 1), "maximum": 2**53 - 1},
        {"properties": {"minimum": {"type": "integer", "default": BIG, "title": "maximum"}}},
        {"type": "object", "minProperties": 1},
        {"required": ["a"], "minProperties": 2},
        {"properties": {"a": {}, "b": {}}, "additionalProperties": False, "minProperties": 2},
        {"minProperties": "none", "required": 3},
    ],
)
def test_what_can_be_kept_is_taken(schema: dict[str, Any]) -> None:
    """Numbers that are doubles, names of properties, what only describes, and properties that cannot come twice."""
    check_schema(schema, "f")


def test_deep_schemas() -> None:
    """However deeply a schema is nested, it is looked at to the end."""
    schema: dict[str, Any] = {"const": BIG}
    for _ in range(5000):
        schema = {"items": schema}
    with pytest.raises(BadRequest):
        check_schema(schema, "f")


def test_functions_that_promise_nothing_lose_what_cannot_be_kept() -> None:
    """They may have any schema; what would become another number is left out of the grammar."""
    schema = {
        "type": "object",
        "properties": {"const": {"type": "integer", "const": BIG}, "b": {"enum": [1]}},
        "anyOf": [{"maximum": BIG}],
    }
    check_tools([FunctionTool(Function("f", parameters=schema))], None)
    assert without_altered(schema) == {
        "type": "object",
        "properties": {"const": {"type": "integer"}, "b": {"enum": [1]}},
        "anyOf": [{}],
    }


def test_outputs_validate_against_the_schema_as_it_was_written() -> None:
    """Whatever numbers a schema has, it is refused, or every output fits it: compared exactly, without any rounding."""
    num_outputs = 0
    for seed in range(300):
        chance = random.Random(seed)
        text = json.dumps(_schema(chance))
        try:
            asked = Formatted(guided_json=text).asked_format()
            assert asked is not None
            grammar = _compiler()(Grammar(GrammarKind.JSON_SCHEMA, asked.grammar.text))
        except (BadRequest, GrammarError):
            continue
        output = wander(grammar.constraint(frozenset(ENDS)), seed, most=100)
        value = decode(output[:-1])
        if output[-1] in ENDS and not re.search(r"[eE][-+]?\d{4}", value):  # which nobody could write out
            num_outputs += 1
            assert _fits(_exact(text), _exact(value)), (text, value)
    assert num_outputs > 60


@cache
def _compiler() -> Any:
    return open_compiler(tokenizer_json(), VOCAB_SIZE, ENDS)


def _exact(text: str) -> Any:
    return json.loads(text, parse_int=Fraction, parse_float=lambda literal: Fraction(Decimal(literal)))


def _number(chance: random.Random) -> float:
    kind = chance.randrange(6)
    if kind == 0:
        return chance.randrange(-(10 ** chance.randrange(1, 24)), 10 ** chance.randrange(1, 24))
    if kind == 1:
        return chance.choice([2**53, 2**31, 2**63, 2**64]) * chance.choice([1, -1]) + chance.randrange(-1, 2)
    if kind == 2:
        return round(chance.uniform(-100, 100), chance.randrange(1, 16))
    if kind == 3:
        return chance.uniform(-1e6, 1e6)
    if kind == 4:
        return chance.random() * 10.0 ** chance.randrange(-30, 30)
    return chance.choice([0, 1, -1, 0.5, -0.0, 0.1, 1.0])


def _schema(chance: random.Random) -> dict[str, Any]:
    kind = chance.randrange(3)
    if kind == 0:
        return {"const": _number(chance)}
    if kind == 1:
        return {"enum": [_number(chance) for _ in range(3)]}
    schema: dict[str, Any] = {"type": chance.choice(["integer", "number"])}
    for bound in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
        if chance.random() < 0.3:
            schema[bound] = _number(chance)
    if chance.random() < 0.3:
        schema["multipleOf"] = chance.choice([1, 2, 3, 7, 10, 12, 100, 0.5, 0.1, 0.25, 0.01])
    return schema


def _fits(schema: dict[str, Any], value: Fraction) -> bool:
    return (
        value == schema.get("const", value)
        and value in schema.get("enum", [value])
        and (schema.get("type") != "integer" or value.denominator == 1)
        and schema.get("minimum", value) <= value <= schema.get("maximum", value)
        and schema.get("exclusiveMinimum", value - 1) < value < schema.get("exclusiveMaximum", value + 1)
        and ("multipleOf" not in schema or (value / schema["multipleOf"]).denominator == 1)
    )
