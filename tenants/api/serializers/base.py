"""What all serializers share."""

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from rest_framework import serializers

from tenants.api.errors import UNKNOWN_FIELD


class Strict(serializers.Serializer[Any]):
    """A request body: unknown fields are an error, so that a typing mistake never passes for a setting."""

    def to_internal_value(self, data: Any) -> Any:
        """Validate `data`."""
        if isinstance(data, dict):
            refuse_unknown(data, {name for name, field in self.fields.items() if not field.read_only})
        return super().to_internal_value(data)


class Unchecked(serializers.Serializer[Any]):
    """A request body that the schema describes and `tenants.rules` check, strictly and in one place."""

    def to_internal_value(self, data: Any) -> dict[str, object]:
        """Return `data` as it came, once it is an object."""
        if not isinstance(data, dict):
            raise serializers.ValidationError({"non_field_errors": ["Write an object of the fields."]})
        return data


class Answer(serializers.Serializer[Any]):
    """A response body; read from the frozen values of `contracts`, or from rows."""


class Text(serializers.CharField):
    """A string in JSON: 7 is none, and neither is true."""

    def to_internal_value(self, data: Any) -> str:
        """Return the string."""
        if not isinstance(data, str):
            raise serializers.ValidationError("Write a string.")
        return super().to_internal_value(data)


class Whole(serializers.IntegerField):
    """A whole number in JSON: neither "12" nor 12.0 nor true."""

    def to_internal_value(self, data: Any) -> int:
        """Return the number."""
        if not isinstance(data, int) or isinstance(data, bool):
            raise serializers.ValidationError("Write a whole number.")
        return data


class Moment(serializers.DateTimeField):
    """A time with a zone; one without would mean something else on every machine."""

    def to_internal_value(self, value: Any) -> datetime:
        """Return the time."""
        if isinstance(value, str) and not (value.endswith(("Z", "z")) or "+" in value[10:] or "-" in value[10:]):
            raise serializers.ValidationError("Write a time with its zone, such as 2030-01-31T12:00:00Z.")
        try:
            return super().to_internal_value(value)
        except OverflowError as error:
            raise serializers.ValidationError("This time is out of range.") from error


def pop_flag(body: dict[str, Any], name: str) -> bool:
    """Take a flag out of an unchecked body; false where it is not there."""
    value = body.pop(name, False)
    if not isinstance(value, bool):
        raise serializers.ValidationError({name: "Write true or false."})
    return value


def refuse_unknown(body: Mapping[str, Any], known: Collection[str]) -> None:
    """Refuse a body with a field that is not known, so that a typing mistake never passes for a setting."""
    unknown = sorted(set(body) - set(known))
    if unknown:
        raise serializers.ValidationError({unknown[0]: [UNKNOWN_FIELD]})


def page_of(answer: type[Answer], name: str) -> type[Answer]:
    """Return the serializer of a page of `answer`, for the schema."""
    fields = {
        "object": serializers.CharField(default="list"),
        "data": answer(many=True),
        "has_more": serializers.BooleanField(),
        "next_cursor": serializers.CharField(allow_null=True),
    }
    return type(f"{name}Page", (Answer,), {"__doc__": f"A page of {name}.", **fields})
