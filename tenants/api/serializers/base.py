"""What all serializers share."""

from datetime import datetime
from typing import Any

from rest_framework import serializers

from tenants.api.errors import UNKNOWN_FIELD


class Strict(serializers.Serializer[Any]):
    """A request body: unknown fields are an error, so that a typing mistake never passes for a setting."""

    def to_internal_value(self, data: Any) -> Any:
        """Validate `data`."""
        if isinstance(data, dict):
            known = {name for name, field in self.fields.items() if not field.read_only}
            unknown = sorted(set(data) - known)
            if unknown:
                raise serializers.ValidationError({unknown[0]: [UNKNOWN_FIELD]})
        return super().to_internal_value(data)


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


def page_of(answer: type[Answer], name: str) -> type[Answer]:
    """Return the serializer of a page of `answer`, for the schema."""
    fields = {
        "object": serializers.CharField(default="list"),
        "data": answer(many=True),
        "has_more": serializers.BooleanField(),
        "next_cursor": serializers.CharField(allow_null=True),
    }
    return type(f"{name}Page", (Answer,), {"__doc__": f"A page of {name}.", **fields})
