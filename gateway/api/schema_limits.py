"""What a JSON schema may say and no grammar can be kept to exactly: it is refused, never taken for something near it.

    numbers         a grammar is made with doubles: 9007199254740993 would come out as 9007199254740992
    minProperties   where names are free, one name written twice would count as two

Schemas are walked without recursion: they are a stranger's, and may be nested as deeply as JSON may.
"""

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from gateway.api.errors import BadRequest

MOST_NUMBER = 2**53  # up to which every integer is a double

_VALUES = {"const", "enum"}
_BOUNDS = {
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    *("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
}
_BY_NAME = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
_LEAST_EXPONENT = -22  # of ten: what is divided by more is no longer rounded once


def check_schema(schema: object, field: str) -> None:
    """Raise BadRequest where outputs can't be kept to a schema exactly.

    Args:
        schema: decoded, its integers of any size.
        field: of the client's request that holds it.
    """
    for path, one in _schemas(schema):
        for keyword in one.keys() & (_VALUES | _BOUNDS):
            number = _altered(one[keyword])
            if number is not None:
                raise BadRequest(
                    f"`{field}`: `{_join(path, keyword)}` of the schema has the number {str(number)[:40]}, which can't "
                    f"be kept exactly: beyond ±2^53, or with more than 15 digits, make it a string, or leave it out",
                    param=field,
                )
        if _may_repeat(one):
            raise BadRequest(
                f"`{field}`: `{_join(path, 'minProperties')}` of the schema can't be kept to, since names that are not "
                "in `properties` may come twice: name them in `properties` and `required`, set `additionalProperties` "
                "to false without `patternProperties`, or leave `minProperties` out",
                param=field,
            )


def without_altered(schema: Any) -> Any:
    """Return a schema without the keywords whose numbers would be altered: it allows all that the given one does.

    Args:
        schema: of a function whose schema promises nothing; not nested deeply.
    """
    if isinstance(schema, list):
        return [without_altered(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept: dict[str, Any] = {}
    for keyword, value in schema.items():
        if keyword in _BY_NAME and isinstance(value, dict):
            kept[keyword] = {name: without_altered(one) for name, one in value.items()}
        elif keyword not in _VALUES | _BOUNDS:
            kept[keyword] = without_altered(value)
        elif _altered(value) is None:
            kept[keyword] = value
    return kept


def _schemas(schema: object) -> Iterator[tuple[str, dict[str, Any]]]:
    """Return every schema within one, each with its path; what only describes is looked at too, and harms nothing."""
    left = [("", schema)]
    while left:
        path, one = left.pop()
        if isinstance(one, list):
            left += [(_join(path, str(index)), item) for index, item in enumerate(one)]
        if not isinstance(one, dict):
            continue
        yield path, one
        for keyword, value in one.items():
            if keyword in _BY_NAME and isinstance(value, dict):
                left += [(_join(path, f"{keyword}.{name}"), item) for name, item in value.items()]
            elif keyword not in _VALUES | _BOUNDS and isinstance(value, dict | list):
                left.append((_join(path, keyword), value))


def _altered(value: object) -> int | float | None:
    """Return the first number within a value that would not come out as it is."""
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            left += one.values()
        elif isinstance(one, list):
            left += one
        elif isinstance(one, int | float) and not _is_exact(one):
            return one
    return None


def _is_exact(number: float) -> bool:
    """Say whether a number is read as what it is where numbers are read as digits, times a power of ten."""
    if abs(number) > MOST_NUMBER:
        return False
    if isinstance(number, int) or number.is_integer():
        return True
    _, digits, exponent = Decimal(repr(number)).as_tuple()
    return int(exponent) >= _LEAST_EXPONENT and int("".join(map(str, digits))) <= MOST_NUMBER


def _may_repeat(schema: dict[str, Any]) -> bool:
    """Say whether an object could have as many properties as it must only by having one of them twice."""
    least = schema.get("minProperties")
    if isinstance(least, bool) or not isinstance(least, int | float):
        return False
    free = schema.get("additionalProperties", True) is not False or bool(schema.get("patternProperties"))
    required = schema.get("required")
    names = {one for one in required if isinstance(one, str)} if isinstance(required, list) else set()
    return free and least > len(names) + 1


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
