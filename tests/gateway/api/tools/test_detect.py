"""Which form a model writes calls in."""

import pytest

from gateway.api.tools.detect import manner_of
from gateway.api.tools.forms import Hermes, Llama, Mistral, Named
from tests.gateway.api.tools.samples import PLAIN, template


@pytest.mark.parametrize(
    ("source", "form", "native"),
    [
        (template("qwen"), Hermes, True),
        (template("llama"), Llama, True),
        (template("mistral"), Mistral, True),
        (template("gemma"), Hermes, False),
        (PLAIN, Hermes, False),
        ("", Hermes, False),
        ("{{ tools }}{{ message.tool_calls }}[TOOL_CALLS]name[ARGS]{}", Named, True),
        ("{{ tools }}{{ message.tool_calls }}<tool_call><function=f>", Hermes, False),
        ("{{ tools }}{{ message.tool_calls }}<|tool▁call▁begin|>", Hermes, False),
        ("{{ tools }}<tool_call>", Hermes, False),
        ("{{ message.tool_calls }}<tool_call>", Hermes, False),
    ],
)
def test_the_template_shows_the_form(source: str, form: type, native: bool) -> None:
    """A form that is known, and told by the template, is the model's own; any other model is told in words."""
    manner = manner_of(source)
    assert type(manner.form) is form
    assert manner.native is native


def test_particulars() -> None:
    """Templates that take one call a message, no system message, or no space before a list, are known."""
    assert manner_of(template("llama")).form.single
    assert not manner_of(template("qwen")).form.single
    assert manner_of(template("qwen")).has_system
    assert not manner_of(template("gemma")).has_system
