"""Which form a model writes calls in, by its chat template: that is where its training shows."""

import re
from typing import NamedTuple

from gateway.api.tools.forms import Form, Hermes, Llama, Mistral, Named

_TOOLS = re.compile(r"\btools\b")
_OTHER_TAGS = ("<function=", "<arg_key>")  # of models that write something else than JSON between Hermes' tags


class Manner(NamedTuple):
    """How a model is told of tools, and how it calls them.

    `native`: its template shows tools, calls and answers. Otherwise they are told as text, and calls are asked for in
    the form of Hermes, whatever the model has learned: what is asked for is what is understood.
    """

    form: Form
    native: bool
    has_system: bool  # the template takes a message from the system


def manner_of(template: str) -> Manner:
    """Return how a model with this chat template calls functions."""
    has_system = "system role not supported" not in template.lower()
    form = _native(template)
    return Manner(form or Hermes(), form is not None, has_system)


def _native(template: str) -> Form | None:
    if not _TOOLS.search(template) or "tool_calls" not in template:
        return None
    single = "single tool-call" in template
    if "[TOOL_CALLS]" in template:
        if "[ARGS]" in template:
            return Named(single=single)
        return Mistral(single=single, space=" " if "[TOOL_CALLS] [" in template else "")
    if "<tool_call>" in template and not any(tag in template for tag in _OTHER_TAGS):
        return Hermes(single=single)
    if "ipython" in template and '"parameters"' in template:
        return Llama(single=single)
    return None
