"""Chat templates, functions to call, and the forms."""

from pathlib import Path
from typing import Any

from transformers.utils.chat_template_utils import render_jinja_template

from gateway.api.functions import Function, FunctionTool
from gateway.api.tools.forms import Form, Hermes, Llama, Mistral, Named

WEATHER = Function(
    name="get_weather",
    description="The weather in a town",
    parameters={
        "type": "object",
        "properties": {"town": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["town"],
        "additionalProperties": False,
    },
)
NOTHING = Function(name="no-thing")
SWITCH = Function(
    name="switch",
    strict=True,
    parameters={
        "type": "object",
        "properties": {"on": {"type": "boolean"}},
        "required": ["on"],
        "additionalProperties": False,
    },
)
FUNCTIONS = (WEATHER, NOTHING, SWITCH)
NAMES = frozenset(function.name for function in FUNCTIONS)
TOOLS = [FunctionTool(function=function) for function in FUNCTIONS]

FORMS: dict[str, Form] = {
    "hermes": Hermes(),
    "llama": Llama(),
    "mistral": Mistral(),
    "mistral without a space": Mistral(space=""),
    "named": Named(),
}

PLAIN = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def template(name: str) -> str:
    """Return what matters here of a model's chat template: qwen (2.5), llama (3.2), mistral (0.3) or gemma (2)."""
    return (Path(__file__).parent / "templates" / f"{name}.jinja").read_text()


def rendered(source: str, turns: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None) -> str:
    """Return what a template makes of turns and tools, as `Model.render` does."""
    texts, _ = render_jinja_template(
        conversations=[turns], tools=tools, chat_template=source, add_generation_prompt=True, eos_token="</s>"
    )
    return str(texts[0])
