"""The form of a policy, and a change of it in words."""

from collections.abc import Iterable
from typing import Any, ClassVar

from django import forms

from gateway.console.limits_form import LimitsForm
from tenants.console import figures
from tenants.contracts import PolicyView
from tenants.rules.policy import MOST_COUNT, PRIORITIES

NO_GROUP = "None"


def _count(label: str, *, low: int, high: int = MOST_COUNT, hint: str = "") -> forms.IntegerField:
    widget = forms.NumberInput(attrs={"class": "input number", "autocomplete": "off"})
    return forms.IntegerField(label=label, min_value=low, max_value=high, help_text=hint, widget=widget)


class PolicyForm(LimitsForm[PolicyView]):
    """All fields of a policy."""

    labels: ClassVar = {
        "kv_soft_bytes": "guaranteed KV",
        "kv_hard_bytes": "hard limit",
        "max_running": "requests at once",
        "max_queued": "waiting requests",
        "rpm": "requests a minute",
        "tpm": "tokens a minute",
        "max_context": "context",
        "max_output": "output",
        "weight": "weight",
        "priority": "class",
        "share_group": "share group",
    }
    kind = PolicyView
    over_note = "nothing more is granted, and no request is ended for it."

    max_running = _count("Requests at once", low=1, high=1_000_000)
    max_queued = _count("Waiting requests", low=0, high=1_000_000)
    rpm = _count("Requests a minute", low=0, hint="0: no limit")
    tpm = _count("Tokens a minute", low=0, hint="0: no limit")
    max_context = _count("Context", low=1, hint="Prompt and output, in tokens.")
    max_output = _count("Output", low=1, hint="Tokens a request may generate.")
    weight = forms.FloatField(
        max_value=1000,
        help_text="Share of service when tenants compete.",
        widget=forms.NumberInput(attrs={"class": "input number", "step": "any", "autocomplete": "off"}),
    )
    priority = forms.ChoiceField(
        label="Class",
        help_text="Interactive goes first, batch last.",
        choices=[(name, name) for name in PRIORITIES],
        widget=forms.Select(attrs={"class": "input"}),
    )
    share_group = forms.ChoiceField(
        help_text="Whose registered prefixes its requests share.",
        required=False,
        widget=forms.Select(attrs={"class": "input"}),
    )

    def __init__(self, *args: Any, groups: Iterable[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        share_group = self.fields["share_group"]
        assert isinstance(share_group, forms.ChoiceField)
        share_group.choices = [("", NO_GROUP), *((name, name) for name in groups)]
        share_group.error_messages["invalid_choice"] = "This group is no longer there: choose another, or none."

    def clean_weight(self) -> float:
        """Take what is above zero."""
        weight: float = self.cleaned_data["weight"]
        if not weight > 0:
            raise forms.ValidationError("Write a number above 0, up to 1000.")
        return weight

    @classmethod
    def written(cls, name: str, value: Any) -> str:
        """Return one value of a policy in words."""
        if name in ("rpm", "tpm") and not value:
            return "no limit"
        if name in ("max_context", "max_output"):
            return str(figures.count(value, "tok"))
        if name == "weight":
            return f"{value:g}"
        if isinstance(value, int) and not name.endswith("_bytes"):
            return str(figures.count(value))
        return super().written(name, value)

    @classmethod
    def action_of(cls, name: str, before: Any, after: Any) -> str:
        """Return what the button says for one change."""
        if name == "priority":
            return f"Set class to {after}"
        if name == "share_group":
            return f"Join share group {after}" if after else f"Leave share group {before}"
        if name in ("rpm", "tpm") and not after:
            return f"Remove the limit of {cls.labels[name]}"
        if name in ("rpm", "tpm") and not before:
            return f"Limit {cls.labels[name]} to {cls.written(name, after)}"
        return super().action_of(name, before, after)
