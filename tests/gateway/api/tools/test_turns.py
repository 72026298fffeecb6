"""The conversation as chat templates take it."""

import json

import pytest

from gateway.api.functions import CalledFunction, ToolCall
from gateway.api.schemas import Message
from gateway.api.tools.detect import manner_of
from gateway.api.tools.turns import template_tools, turns_of
from tests.gateway.api.tools.samples import NOTHING, PLAIN, TOOLS, rendered, template

Arguments = str


def call(number: int, arguments: Arguments = '{"town": "Rome"}') -> ToolCall:
    """Return a call."""
    return ToolCall(id=f"call_{number}", function=CalledFunction(name="get_weather", arguments=arguments))


USER = Message(role="user", content="How is it?")
ONE = Message(role="assistant", content=None, tool_calls=[call(1)])
TWO = Message(role="assistant", content="I look.", tool_calls=[call(1), call(2, '{"town": "Oslo"}')])
SUN = Message(role="tool", content="sun", tool_call_id="call_1")
RAIN = Message(role="tool", content="rain", tool_call_id="call_2")
SYSTEM = Message(role="system", content="Be short.")


def shown(name: str, messages: list[Message], *, tools: bool = False) -> str:
    """Return what a model's template makes of a conversation."""
    source = PLAIN if name == "plain" else template(name)
    manner = manner_of(source)
    offered = TOOLS if tools else []
    native = template_tools(offered) if tools and manner.native else None
    return rendered(source, turns_of(messages, manner, offered), native)


def test_qwen_reads_its_own_words() -> None:
    """Calls and answers are told by the template, with the arguments as an object and as the model wrote them."""
    text = shown("qwen", [USER, TWO, RAIN, SUN], tools=True)
    assert text.startswith("<|im_start|>system\n# Tools\n")
    assert '{"type": "function", "function": {"name": "switch", "parameters": ' in text
    assert (
        "<|im_start|>assistant\nI look.\n"
        '<tool_call>\n{"name": "get_weather", "arguments": {"town": "Rome"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "get_weather", "arguments": {"town": "Oslo"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\nrain\n</tool_response>\n<tool_response>\nsun\n</tool_response><|im_end|>\n"
    ) in text


def test_llama_gets_one_call_a_message() -> None:
    """Where a template takes one call a message, several are told one after the other, each with its answer."""
    text = shown("llama", [USER, TWO, RAIN, SUN], tools=True)
    first = text.index('{"name": "get_weather", "parameters": {"town": "Oslo"}}')
    second = text.index('{"name": "get_weather", "parameters": {"town": "Rome"}}')
    assert first < text.index("rain") < second < text.index("sun")


def test_mistral_gets_short_ids() -> None:
    """Where a template insists on ids of nine letters and digits, it gets them, the same in call and answer."""
    text = shown("mistral", [USER, TWO, RAIN, SUN])
    calls = json.loads(text[text.index("[TOOL_CALLS] ") + len("[TOOL_CALLS] ") : text.index("</s>")])
    assert [len(one["id"]) for one in calls] == [9, 9]
    assert f'{{"content": rain, "call_id": "{calls[1]["id"]}"}}' in text
    assert f'{{"content": sun, "call_id": "{calls[0]["id"]}"}}' in text


def test_a_model_without_tools_is_told_in_words() -> None:
    """A template that knows no tools gets them in a system message, calls in tags, and answers from the user."""
    text = shown("plain", [SYSTEM, USER, TWO, SUN, RAIN, USER], tools=True)
    assert text.startswith("<|im_start|>system\nBe short.\n\n# Tools\n")
    assert json.dumps(template_tools(TOOLS)[0]) in text
    assert (
        '<|im_start|>assistant\nI look.\n<tool_call>\n{"name": "get_weather", "arguments": {"town": "Rome"}}\n'
        '</tool_call>\n<tool_call>\n{"name": "get_weather", "arguments": {"town": "Oslo"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\nsun\n</tool_response>\n<tool_response>\nrain\n</tool_response>\n"
        "How is it?<|im_end|>\n"
    ) in text


def test_tools_without_a_system_message() -> None:
    """Where there is no system message, one is made; where the template takes none, the user tells."""
    assert shown("plain", [USER], tools=True).startswith("<|im_start|>system\n# Tools\n")
    text = shown("gemma", [USER, ONE, SUN], tools=True)
    assert text.startswith("<bos><start_of_turn>user\n# Tools\n")
    assert "</tool_call>\n\nHow is it?<end_of_turn>" in text
    assert "<start_of_turn>user\n<tool_response>\nsun\n</tool_response><end_of_turn>\n" in text


@pytest.mark.parametrize("name", ["qwen", "llama", "mistral", "gemma", "plain"])
def test_a_conversation_without_tools_is_as_ever(name: str) -> None:
    """Without tools and calls the turns are the messages: nothing that is cached under them is lost."""
    messages = [USER, Message(role="assistant", content="Fine."), Message(role="user", content="Good.", name="Ann")]
    assert turns_of(messages, manner_of(PLAIN if name == "plain" else template(name)), []) == [
        message.turn() for message in messages
    ]


@pytest.mark.parametrize("name", ["qwen", "llama", "mistral", "gemma", "plain"])
@pytest.mark.parametrize("arguments", ["", "{}", "[1]", "oops {", '{"a": ' * 200 + "1" + "}" * 200, '{"a": "\\ud800"}'])
def test_any_arguments_are_told(name: str, arguments: str) -> None:
    """Whatever a model once wrote as arguments can be told again."""
    messages = [USER, Message(role="assistant", tool_calls=[call(1, arguments)]), SUN]
    assert "get_weather" in shown(name, messages)


def test_an_answer_without_its_call() -> None:
    """An answer whose call was dropped from the conversation is told all the same."""
    assert "sun" in shown("qwen", [SUN, USER])


def test_template_tools() -> None:
    """A function always has a schema there, and says nothing of what is our own affair."""
    assert template_tools(TOOLS)[1] == {
        "type": "function",
        "function": {"name": NOTHING.name, "parameters": {"type": "object", "properties": {}}},
    }
    assert all("strict" not in tool["function"] for tool in template_tools(TOOLS))
