"""The form that registers a prefix: the beginning of a chat, or of a prompt."""

from collections.abc import Mapping
from typing import Any, cast

from django import forms
from django.utils.datastructures import MultiValueDict

from tenants.console import figures
from tenants.contracts import PrefixMessage
from tenants.errors import Invalid
from tenants.rules.prefixes import MOST_BYTES, MOST_MESSAGES, ROLES

KINDS = (("chat", "Chat"), ("text", "Raw text"))


class MessagesWidget(forms.Widget):
    """The messages after the system prompt: any number of `role` and `content`, drawn by the template."""

    def value_from_datadict(self, data: Mapping[str, Any], files: Any, name: str) -> list[tuple[str, str]]:
        """Return what was posted, in order."""
        assert isinstance(data, MultiValueDict)
        return list(zip(data.getlist("role"), data.getlist("content"), strict=False))


class ExactText(forms.CharField):
    """A text of which every character counts; a browser sends its line ends as CR LF, where programs write LF."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(strip=False, required=False, **kwargs)

    def to_python(self, value: Any) -> str:
        """Return the text with plain line ends."""
        return plain(super().to_python(value) or "")


class PrefixForm(forms.Form):
    """Name and contents; `tenants.services.prefixes` has the last word on all of them."""

    name = forms.CharField(
        max_length=80,
        error_messages={"required": "Give the prefix a name, so that it can be told from the others."},
        help_text="What it is, such as “support assistant”.",
        widget=forms.TextInput(attrs={"class": "input", "autocomplete": "off", "autofocus": True}),
    )
    kind = forms.ChoiceField(label="What requests begin with", choices=KINDS, initial="chat", widget=forms.RadioSelect)
    system = ExactText(
        label="System prompt",
        help_text="Exactly as requests send it: every space and line break counts.",
        widget=forms.Textarea(attrs={"class": "input exact", "rows": 8, "spellcheck": "false"}),
    )
    messages = forms.Field(required=False, widget=MessagesWidget)
    text = ExactText(
        help_text="The beginning of a prompt for /v1/completions, exactly as requests send it.",
        widget=forms.Textarea(attrs={"class": "input exact", "rows": 12, "spellcheck": "false"}),
    )

    @property
    def turns(self) -> list[tuple[str, str]]:
        """The messages after the system prompt as they were posted."""
        return self["messages"].value() or []

    @property
    def most_turns(self) -> int:
        """How many messages may follow the system prompt."""
        return MOST_MESSAGES - 1

    def clean_messages(self) -> tuple[PrefixMessage, ...]:
        """Take the messages that hold something; an empty one was added and not written."""
        turns = [(role, plain(content)) for role, content in self.cleaned_data["messages"] or []]
        if any(role not in ROLES for role, _ in turns):
            raise forms.ValidationError("A message is from the system, the user or the assistant.")
        return tuple(PrefixMessage(cast(Any, role), content) for role, content in turns if content)

    def clean(self) -> dict[str, Any]:
        """Ask for contents of the kind that was chosen, and no more of them than there may be."""
        cleaned = super().clean() or self.cleaned_data
        if {"kind", "system", "messages", "text"} & set(self.errors):
            return cleaned
        is_text = cleaned["kind"] == "text"
        parts = [cleaned["text"]] if is_text else [cleaned["system"], *(one.content for one in cleaned["messages"])]
        size = sum(len(part.encode()) for part in parts)
        field = "text" if is_text else "system"
        if not size:
            self.add_error(field, f"Write {'what the prompts begin with' if is_text else 'it, or add a message'}.")
        elif size > MOST_BYTES:
            too_long = f"This is {figures.size(size)}; a prefix has at most {figures.size(MOST_BYTES)}: shorten it."
            self.add_error(field, too_long)
        return cleaned

    def contents(self) -> dict[str, Any]:
        """Return `messages` or `text`, of a form that is valid."""
        if self.cleaned_data["kind"] == "text":
            return {"text": self.cleaned_data["text"]}
        system = self.cleaned_data["system"]
        first = (PrefixMessage("system", system),) if system else ()
        return {"messages": (*first, *self.cleaned_data["messages"])}

    def show(self, error: Invalid) -> None:
        """Put what the service found wrong at the field that it is about."""
        field = error.field.partition(".")[0]
        if field in ("messages", "text"):
            field = "text" if self.cleaned_data["kind"] == "text" else "messages"
        self.add_error(field if field in self.fields else None, error.message)


def plain(text: str) -> str:
    """Return `text` with plain line ends."""
    return text.replace("\r\n", "\n")
