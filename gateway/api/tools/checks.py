"""What a request may say of tools, beyond what types hold: whatever is wrong is a 400 that names the field."""

from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from gateway.api.errors import BadRequest
from gateway.api.functions import AllowedToolChoice, Function, FunctionTool, NamedTool, ToolCall, ToolChoice
from gateway.api.schema_limits import check_schema

MAX_DEPTH = 64  # of a schema, or of a call's arguments: templates walk them with recursion
MAX_SCHEMA_BYTES = 1 << 16
MAX_SCHEMAS_BYTES = 1 << 19  # of all functions
MAX_DESCRIPTION_CHARACTERS = 1 << 14


class Said(Protocol):
    """What counts of a message here."""

    @property
    def role(self) -> str:
        """Who says it."""
        ...

    @property
    def tool_calls(self) -> Sequence[ToolCall] | None:
        """Calls that it makes."""
        ...

    @property
    def tool_call_id(self) -> str | None:
        """The call that it answers."""
        ...


def check_tools(tools: Sequence[FunctionTool] | None, choice: ToolChoice | None) -> None:
    """Raise BadRequest where tools, or the choice among them, can't be served."""
    names: set[str] = set()
    size = 0
    for index, tool in enumerate(tools or ()):
        path = f"tools[{index}].function"
        if tool.function.name in names:
            raise BadRequest(
                f"`{path}.name` is `{tool.function.name}` once more: give each function its own name",
                param=f"{path}.name",
            )
        names.add(tool.function.name)
        size += _check_function(tool.function, path)
        if size > MAX_SCHEMAS_BYTES:
            raise BadRequest(f"`tools` have more than {MAX_SCHEMAS_BYTES} bytes of schemas: send fewer", param="tools")
    _check_choice(choice, names)


def check_calls(messages: Iterable[Said]) -> None:
    """Raise BadRequest where a call isn't answered before the conversation goes on, or an answer has no call."""
    open_calls: dict[str, None] = {}
    caller = ""  # the message that made them
    for index, message in enumerate(messages):
        path = f"messages[{index}]"
        if message.role == "tool":
            if message.tool_call_id not in open_calls:
                raise BadRequest(
                    f"`{path}.tool_call_id` answers no call of the assistant's message before it, or one that has been "
                    "answered: name one of its `tool_calls`",
                    param=f"{path}.tool_call_id",
                )
            del open_calls[message.tool_call_id]
            continue
        _check_answered(open_calls, caller)
        caller = path
        for number, call in enumerate(message.tool_calls or ()):
            if call.id in open_calls or not call.id:
                field = f"{path}.tool_calls[{number}].id"
                raise BadRequest(f"`{field}` is empty, or that of another call: give each its own", param=field)
            open_calls[call.id] = None
    _check_answered(open_calls, caller)


def is_deeper(value: object, most: int) -> bool:
    """Return whether objects and arrays are nested in more than `most` levels. Needs no recursion."""
    level = [value]
    for _ in range(most):
        level = [child for one in level for child in _children(one)]
        if not level:
            return False
    return any(isinstance(one, dict | list) for one in level)


def _children(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _check_function(function: Function, path: str) -> int:
    """Return how many bytes the function's schema has. Raises BadRequest where it can't be served."""
    if len(function.description or "") > MAX_DESCRIPTION_CHARACTERS:
        raise BadRequest(
            f"`{path}.description` has {len(function.description or '')} characters: write at most "
            f"{MAX_DESCRIPTION_CHARACTERS}",
            param=f"{path}.description",
        )
    if function.parameters is None:
        return 0
    field = f"{path}.parameters"
    size = len(msgspec.json.encode(function.parameters))
    if size > MAX_SCHEMA_BYTES:
        raise BadRequest(f"`{field}` has {size} bytes: send at most {MAX_SCHEMA_BYTES}", param=field)
    if is_deeper(function.parameters, MAX_DEPTH):
        raise BadRequest(f"`{field}` is nested in more than {MAX_DEPTH} levels: make it flatter", param=field)
    if function.parameters.get("type", "object") != "object":
        raise BadRequest(f'`{field}` must be the schema of an object: set its `type` to "object"', param=field)
    if function.strict:
        check_schema(function.parameters, field)
    return size


def _check_choice(choice: ToolChoice | None, names: set[str]) -> None:
    if choice is None or choice in ("none", "auto"):
        return
    if not names:
        raise BadRequest(
            "`tool_choice` asks for a call, and there are no `tools`: send some, or leave it out", param="tool_choice"
        )
    if isinstance(choice, NamedTool):
        asked, field = [choice.function.name], "tool_choice.function.name"
    elif isinstance(choice, AllowedToolChoice):
        asked = [tool.function.name for tool in choice.allowed_tools.tools]
        field = "tool_choice.allowed_tools.tools"
    else:
        return
    for name in asked:
        if name not in names:
            raise BadRequest(f"`{field}` names `{name[:64]}`, which is none of the `tools`", param=field)


def _check_answered(open_calls: Iterable[str], caller: str) -> None:
    for call_id in open_calls:
        field = f"{caller}.tool_calls"
        raise BadRequest(
            f"`{field}` has the call `{call_id[:64]}`, which no message of the role `tool` answers: add one right "
            "behind it",
            param=field,
        )
