"""Models whose own templates show tools, and whose markers of calls are special tokens, through real processes."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from tests.engine.tiny_model import make_tiny_model
from tests.gateway.api.test_tools import HELLO, NAMED, ONE, TOOLS, check
from tests.gateway.api.tools.samples import template
from tests.gateway.wire.stack import Stack, TenantInTest, running_stack

MARKERS = {"qwen": ["<tool_call>", "</tool_call>"], "mistral": ["[TOOL_CALLS]"], "llama": ["<|python_tag|>"]}
MODELS = pytest.mark.parametrize("model", MARKERS)

pytestmark = pytest.mark.xdist_group("native tools")


@pytest.fixture(scope="module")
def native_stack() -> Iterator[Stack]:
    """A deployment with one worker for each form."""
    with tempfile.TemporaryDirectory(prefix="tollgate-tools-") as name:  # short: it holds unix sockets
        folder = Path(name)
        with running_stack(folder, {model: _model(folder / f"model-{model}", model) for model in MARKERS}) as running:
            yield running


@pytest.fixture
def native_tenant(native_stack: Stack) -> Iterator[TenantInTest]:
    """A new tenant; closes its clients."""
    yield native_stack.tenant()
    native_stack.close_clients()


def _model(folder: Path, name: str) -> Path:
    make_tiny_model(folder, vocab_size=512)
    path = str(folder / "tokenizer.json")
    tokenizer = Tokenizer.from_file(path)
    tokenizer.add_special_tokens(MARKERS[name])
    assert tokenizer.get_vocab_size() <= 512
    tokenizer.save(path)
    (folder / "chat_template.jinja").write_text(template(name))
    return folder


@MODELS
def test_a_call_in_the_models_own_form(native_stack: Stack, native_tenant: TenantInTest, model: str) -> None:
    """A required call is read, with its markers, from what the worker sends; and told again to the template."""
    client = native_stack.openai(native_tenant.key())
    answer = client.chat.completions.create(**ONE | {"model": model}, temperature=1, seed=3)
    message = answer.choices[0].message
    assert (answer.choices[0].finish_reason, message.content) == ("tool_calls", None)
    [call] = message.tool_calls
    check(call)
    answered = [*HELLO, message, {"role": "tool", "tool_call_id": call.id, "content": "done"}]
    again = client.chat.completions.create(model=model, messages=answered, tools=TOOLS, max_tokens=2)
    assert again.usage.prompt_tokens > answer.usage.prompt_tokens


@MODELS
def test_streams(native_stack: Stack, native_tenant: TenantInTest, model: str) -> None:
    """A stream of several outputs has the same calls as the whole answer, and no content."""
    client = native_stack.openai(native_tenant.key())
    common: dict[str, Any] = ONE | {"model": model, "n": 3, "temperature": 1, "seed": 5}
    whole = client.chat.completions.create(**common)
    arguments = {choice.index: "" for choice in whole.choices}
    names = dict.fromkeys(arguments, "")
    for chunk in client.chat.completions.create(**common, stream=True):
        for choice in chunk.choices:
            assert not choice.delta.content
            for piece in choice.delta.tool_calls or []:
                arguments[choice.index] += piece.function.arguments or ""
                names[choice.index] += piece.function.name or ""
    for choice in whole.choices:
        [call] = choice.message.tool_calls
        assert (call.function.name, call.function.arguments) == (names[choice.index], arguments[choice.index])


@MODELS
def test_a_named_function(native_stack: Stack, native_tenant: TenantInTest, model: str) -> None:
    """A function that is named is called, once."""
    answer = native_stack.openai(native_tenant.key()).chat.completions.create(
        model=model, messages=HELLO, tools=TOOLS, tool_choice=NAMED
    )
    [call] = answer.choices[0].message.tool_calls
    assert call.function.name == "pick"
    check(call)


@MODELS
def test_text_beside_tools(native_stack: Stack, native_tenant: TenantInTest, model: str) -> None:
    """Text that a grammar keeps from calls, because only one is allowed, is told; and so is one call."""
    choices = (
        native_stack.openai(native_tenant.key())
        .chat.completions.create(
            model=model, messages=HELLO, tools=TOOLS, parallel_tool_calls=False, n=4, temperature=1, max_tokens=24
        )
        .choices
    )
    for choice in choices:
        assert choice.message.content or choice.message.tool_calls or choice.finish_reason == "stop"
        for call in choice.message.tool_calls or []:
            assert choice.finish_reason == "length" or json.loads(call.function.arguments) is not None
