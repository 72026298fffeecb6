"""The conversation as a model's chat template takes it: with calls and their answers, or with their text."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from gateway.api.functions import FunctionTool
from gateway.api.schemas import Message
from gateway.api.tools.checks import MAX_DEPTH, is_deeper
from gateway.api.tools.detect import Manner
from gateway.api.tools.forms import Form

Turn = dict[str, Any]

# Qwen's words, which many models have met in training.
_PROMPT = """\
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


def turns_of(messages: Sequence[Message], manner: Manner, tools: Sequence[FunctionTool]) -> list[Turn]:
    """Return what a template is to render.

    Args:
        messages: the conversation.
        manner: the model's.
        tools: those that the model is told of. Where the template shows them itself, they are not in the turns.
    """
    if manner.native:
        turns = list(_with_calls(messages, manner.form))
        return list(_one_by_one(turns)) if manner.form.single else turns
    turns = list(_as_text(messages))
    if tools:
        _tell(turns, _PROMPT.format(tools="\n".join(map(_json, template_tools(tools)))), has_system=manner.has_system)
    return turns


def template_tools(tools: Sequence[FunctionTool]) -> list[dict[str, Any]]:
    """Return tools as templates take them: in OpenAI's words, a schema always there."""
    shown = []
    for tool in tools:
        function: dict[str, Any] = {"name": tool.function.name}
        if tool.function.description is not None:
            function["description"] = tool.function.description
        function["parameters"] = tool.function.parameters or {"type": "object", "properties": {}}
        shown.append({"type": "function", "function": function})
    return shown


def _with_calls(messages: Sequence[Message], form: Form) -> Iterator[Turn]:
    names: dict[str, str] = {}  # of functions, by the ids of calls
    for message in messages:
        turn = message.turn()
        if message.tool_calls:
            turn["tool_calls"] = [
                {
                    "id": form.call_id(call.id),
                    "type": "function",
                    "function": {"name": call.function.name, "arguments": _arguments(call.function.arguments)},
                }
                for call in message.tool_calls
            ]
            names |= {call.id: call.function.name for call in message.tool_calls}
        if message.tool_call_id is not None:
            turn["tool_call_id"] = form.call_id(message.tool_call_id)
            if message.tool_call_id in names:
                turn.setdefault("name", names[message.tool_call_id])
        yield turn


def _one_by_one(turns: Sequence[Turn]) -> Iterator[Turn]:
    """Tell several calls of one message as so many messages, each with its answer behind it."""
    waiting: dict[str, Turn] = {}  # messages with one call each, by its id
    for turn in turns:
        if turn["role"] == "tool":
            call = waiting.pop(turn["tool_call_id"], None)
            if call is not None:
                yield call
            yield turn
            continue
        yield from waiting.values()
        waiting = {}
        if len(turn.get("tool_calls", ())) < 2:
            yield turn
            continue
        content = turn["content"]
        for call in turn["tool_calls"]:
            waiting[call["id"]] = {**turn, "content": content, "tool_calls": [call]}
            content = ""
    yield from waiting.values()


def _as_text(messages: Sequence[Message]) -> Iterator[Turn]:
    """Tell calls in the words of Hermes, and their answers as the user's, together with what the user says then."""
    answers: list[str] = []
    for message in messages:
        if message.role == "tool":
            answers.append(f"<tool_response>\n{message.text()}\n</tool_response>")
            continue
        turn: Turn = {"role": message.turn()["role"], "content": message.text()}
        if message.name is not None:
            turn["name"] = message.name
        if message.tool_calls:
            calls = [_call_text(call.function.name, call.function.arguments) for call in message.tool_calls]
            turn["content"] = "\n".join([turn["content"], *calls] if turn["content"] else calls)
        if answers and message.role == "user":
            turn["content"] = "\n".join([*answers, turn["content"]])
        elif answers:
            yield {"role": "user", "content": "\n".join(answers)}
        answers = []
        yield turn
    if answers:
        yield {"role": "user", "content": "\n".join(answers)}


def _tell(turns: list[Turn], prompt: str, *, has_system: bool) -> None:
    """Put what tells of the tools where the model reads it first."""
    role = "system" if has_system else "user"
    if turns and turns[0]["role"] == role:
        told = [turns[0]["content"], prompt] if has_system else [prompt, turns[0]["content"]]
        turns[0] = {**turns[0], "content": "\n\n".join(filter(None, told))}
    else:
        turns.insert(0, {"role": role, "content": prompt})


def _call_text(name: str, arguments: str) -> str:
    return f"<tool_call>\n{_json({'name': name, 'arguments': _arguments(arguments)})}\n</tool_call>"


def _arguments(text: str) -> Mapping[str, Any] | str:
    """Return the object that a call's arguments are; their text, where they are none, or too deep for templates."""
    if not text.strip():
        return {}
    try:
        value = msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return text
    return value if isinstance(value, dict) and not is_deeper(value, MAX_DEPTH) else text


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
