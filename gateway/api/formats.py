"""What an output must be, in the words of the surfaces, and the worker's one form of it.

    response_format      OpenAI's: text, a JSON object, or JSON that a schema describes
    regex, grammar       extensions: a regular expression, or a grammar in the Lark form of llguidance
    structured_outputs   vLLM's names of the same, today's and those of earlier versions
    guided_*

A request has one of them at most. The worker knows a single field, `grammar`; what it refuses is told under the name
that the client used.
"""

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from engine.protocol import pb
from gateway.api.errors import BadRequest
from gateway.api.schema_limits import check_schema

MAX_GRAMMAR_CHARACTERS = 1 << 17  # of a schema, an expression or a grammar as the worker gets it
MAX_CHOICES = 1024

Name = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{1,64}\Z")]
Schema = dict[str, Any]
Choices = Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(min_length=1, max_length=MAX_CHOICES)]

_ANY_OBJECT = '{"type": "object"}'


class TextFormat(msgspec.Struct, tag="text", tag_field="type", forbid_unknown_fields=True, frozen=True):
    """Any text."""


class JsonObjectFormat(msgspec.Struct, tag="json_object", tag_field="type", forbid_unknown_fields=True, frozen=True):
    """Any JSON object."""


class JsonSchema(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A schema with its name. Every schema is kept to, whether `strict` or not."""

    name: Name
    description: str | None = None
    schema: Schema | None = None
    strict: bool | None = None


class JsonSchemaFormat(msgspec.Struct, tag="json_schema", tag_field="type", forbid_unknown_fields=True, frozen=True):
    """JSON that a schema describes."""

    json_schema: JsonSchema


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat


class StructuredOutputs(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """vLLM's one field for all of them; exactly one is set. A schema may be an object, or a text that holds one."""

    json: Schema | str | None = None
    json_object: bool | None = None
    regex: str | None = None
    grammar: str | None = None
    choice: Choices | None = None


class Asked(NamedTuple):
    """A grammar, and the field of the client's request that says it."""

    field: str
    grammar: pb.Grammar


class Formatted(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The part of a request that says what its output must be."""

    response_format: ResponseFormat | None = None
    regex: str | None = None
    grammar: str | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | str | None = None
    guided_regex: str | None = None
    guided_grammar: str | None = None
    guided_choice: Choices | None = None

    @property
    def format_fields(self) -> list[str]:
        """Those of these fields that are in use; where the request has been checked, none or one."""
        fields = [name for name in _PLAIN if getattr(self, name) is not None]
        if self.response_format is not None and not isinstance(self.response_format, TextFormat):
            fields.insert(0, "response_format")
        if self.structured_outputs is not None:
            fields.append("structured_outputs")
        return fields

    def check_format(self) -> None:
        """Raise BadRequest where the request says in two ways what its output must be."""
        fields = self.format_fields
        if len(fields) > 1:
            raise BadRequest(
                f"`{fields[1]}` can't be combined with `{fields[0]}`: leave one of them out",
                param=fields[1],
            )

    def asked_format(self) -> Asked | None:
        """Return what the output must be; None: it may be anything.

        Raises:
            BadRequest: it is too long or empty, or a text that should hold a schema doesn't.
        """
        fields = self.format_fields
        if not fields:
            return None
        field = fields[0]
        if field == "response_format":
            return _of_format(self.response_format)
        if field == "structured_outputs":
            return _of_structure(self.structured_outputs)
        return _asked(field, _PLAIN[field], getattr(self, field))


def json_schema(schema: Schema | None, *, field: str) -> Asked:
    """Return what asks for JSON that `schema` describes; None: any object.

    Raises:
        BadRequest: it is too long, or has what no output can be kept to exactly.
    """
    check_schema(schema, field)
    text = _ANY_OBJECT if schema is None else msgspec.json.encode(schema).decode()
    return _made(field, pb.Grammar.KIND_JSON_SCHEMA, text)


_PLAIN = {
    "regex": "regex",
    "grammar": "grammar",
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_grammar": "grammar",
    "guided_choice": "choice",
}


def _of_structure(wanted: StructuredOutputs | None) -> Asked:
    given = [name for name in StructuredOutputs.__struct_fields__ if getattr(wanted, name) not in (None, False)]
    if len(given) != 1:
        raise BadRequest(
            f"`structured_outputs` has {len(given)} of its fields set: set exactly one", param="structured_outputs"
        )
    return _asked(f"structured_outputs.{given[0]}", given[0], getattr(wanted, given[0]))


def _of_format(wanted: ResponseFormat | None) -> Asked | None:
    if isinstance(wanted, JsonObjectFormat):
        return json_schema(None, field="response_format")
    if isinstance(wanted, JsonSchemaFormat):
        return json_schema(wanted.json_schema.schema, field="response_format")
    return None


def _asked(field: str, kind: str, value: Any) -> Asked:
    if kind == "json_object":
        return json_schema(None, field=field)
    if kind == "json":
        return json_schema(_schema_in(value, field) if isinstance(value, str) else value, field=field)
    if kind == "choice":
        return _made(field, pb.Grammar.KIND_LARK, _one_of_texts(value))
    return _made(field, pb.Grammar.KIND_REGEX if kind == "regex" else pb.Grammar.KIND_LARK, value)


def _made(field: str, kind: pb.Grammar.Kind, text: str) -> Asked:
    if not text:
        raise BadRequest(f"`{field}` is empty: write what the output must be, or leave it out", param=field)
    if len(text) > MAX_GRAMMAR_CHARACTERS:
        raise BadRequest(f"`{field}` has {len(text)} characters: send at most {MAX_GRAMMAR_CHARACTERS}", param=field)
    return Asked(field, pb.Grammar(kind=kind, text=text))


def _schema_in(text: str, field: str) -> Schema:
    try:
        return msgspec.json.decode(text, type=Schema)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise BadRequest(f"`{field}` is a text that holds no JSON schema: {error}", param=field) from error


def _one_of_texts(texts: Sequence[str]) -> str:
    """Return the grammar of an output that is one of `texts`; a string of Lark is written as one of JSON."""
    return "start: " + " | ".join(msgspec.json.encode(text).decode() for text in texts)
