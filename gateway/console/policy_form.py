"""The form of a policy, and what a change of it would do."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec
from django import forms

from gateway.console.bytes_field import BytesField, BytesWidget
from tenants import selectors
from tenants.console import figures
from tenants.contracts import PolicyView
from tenants.rules.policy import LOW_WATERMARK, MOST_BYTES, MOST_COUNT, PRIORITIES

LABELS = {
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
NO_GROUP = "None"


def _count(label: str, *, low: int, high: int = MOST_COUNT, hint: str = "") -> forms.IntegerField:
    widget = forms.NumberInput(attrs={"class": "input number", "autocomplete": "off"})
    return forms.IntegerField(label=label, min_value=low, max_value=high, help_text=hint, widget=widget)


class PolicyForm(forms.Form):
    """All fields of a policy; `base` is the policy that the operator started from, by which conflicts are told."""

    base = forms.CharField(widget=forms.HiddenInput, max_length=2000)
    kv_soft_bytes = BytesField(label="Guaranteed (soft)", help_text="Never taken for another tenant.")
    kv_hard_bytes = BytesField(label="Ceiling (hard)", help_text="Never passed, at any step.")
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
        self.groups = tuple(groups)
        share_group = self.fields["share_group"]
        assert isinstance(share_group, forms.ChoiceField)
        share_group.choices = [("", NO_GROUP), *((name, name) for name in self.groups)]
        share_group.error_messages["invalid_choice"] = "This group is no longer there: choose another, or none."

    def clean_base(self) -> PolicyView:
        """Read the policy that the form was made from."""
        try:
            return msgspec.json.decode(self.cleaned_data["base"], type=PolicyView)
        except (msgspec.DecodeError, UnicodeError) as error:
            raise forms.ValidationError("This form is damaged: reload the page.") from error

    def clean_weight(self) -> float:
        """Take what is above zero."""
        weight: float = self.cleaned_data["weight"]
        if not weight > 0:
            raise forms.ValidationError("Write a number above 0, up to 1000.")
        return weight

    def clean(self) -> dict[str, Any]:
        """Keep the guarantee under the ceiling."""
        cleaned = super().clean() or self.cleaned_data
        if cleaned.get("kv_soft_bytes", 0) > cleaned.get("kv_hard_bytes", MOST_BYTES):
            self.add_error("kv_soft_bytes", "The guarantee is above the hard limit: lower it, or raise the limit.")
        return cleaned

    def changes(self, current: PolicyView) -> dict[str, Any]:
        """Return the fields that the form, which is valid, would change in `current`."""
        return {name: self.cleaned_data[name] for name in LABELS if self.cleaned_data[name] != getattr(current, name)}

    def rebased(self, fresh: PolicyView) -> "PolicyForm":
        """Return a form made from `fresh` with the operator's own changes, those of `base`, on top."""
        mine = self.changes(self.cleaned_data["base"])
        data = {"base": encoded(fresh)}
        for name in LABELS:
            value = mine.get(name, getattr(fresh, name))
            if name.endswith("_bytes"):
                data[name], data[f"{name}_unit"] = BytesWidget().decompress(value)
            else:
                data[name] = str(_plain(value))
        return PolicyForm(data, groups=self.groups)


def encoded(policy: PolicyView) -> str:
    """Return a policy as `base` carries it."""
    return msgspec.json.encode(policy).decode()


def initial(policy: PolicyView) -> dict[str, Any]:
    """Return a policy as the form's first values."""
    return {name: _plain(getattr(policy, name)) for name in LABELS} | {"base": encoded(policy)}


def _plain(value: Any) -> Any:
    """Return a value as a person writes it: 2, not 2.0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One field's change, in words and figures."""

    label: str
    before: str
    after: str
    note: str = ""


def change(name: str, before: Any, after: Any, use_bytes: int = 0) -> Change:
    """Return a field's change as it is shown; a hard limit under the use says what that does."""
    note = ""
    if name == "kv_hard_bytes" and after < use_bytes:
        over = figures.size(use_bytes - after)
        note = f"{over} of the use is over it: nothing more is granted, and no request is ended for it."
    return Change(label=LABELS[name], before=written(name, before), after=written(name, after), note=note)


def written(name: str, value: Any) -> str:
    """Return one value of a policy in words."""
    if name.endswith("_bytes"):
        return str(figures.size(value))
    if name in ("rpm", "tpm") and not value:
        return "no limit"
    if name in ("max_context", "max_output"):
        return str(figures.count(value, "tok"))
    if name == "weight":
        return f"{value:g}"
    if name == "share_group":
        return value or "none"
    return value if isinstance(value, str) else str(figures.count(value))


def action(changes: dict[str, Any], current: PolicyView) -> str:
    """Return what the button says: the change itself where there is one, else how many."""
    if not changes:
        return "Nothing to apply"
    if len(changes) > 1:
        return f"Apply {len(changes)} changes"
    ((name, after),) = changes.items()
    if name == "priority":
        return f"Set class to {after}"
    if name == "share_group":
        return f"Join share group {after}" if after else f"Leave share group {current.share_group}"
    before = getattr(current, name)
    if name in ("rpm", "tpm") and not after:
        return f"Remove the limit of {LABELS[name]}"
    if name in ("rpm", "tpm") and not before:
        return f"Limit {LABELS[name]} to {written(name, after)}"
    return f"{'Raise' if after > before else 'Lower'} {LABELS[name]} to {written(name, after)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarantees:
    """The sum of all soft limits, of tenants and share groups, against the pool, before and after."""

    before: int
    after: int
    pool: int

    @property
    def room(self) -> int:
        """Bytes that may be guaranteed: the pool up to its low watermark."""
        return int(self.pool * LOW_WATERMARK)

    @property
    def fits(self) -> bool:
        """Whether the guarantees fit, or rise no further."""
        return self.after <= self.room or self.after <= self.before


def guarantees(*, before: int, after: int) -> Guarantees:
    """Return the sum before and after one owner's soft limit goes from `before`, which is in force, to `after`."""
    total = selectors.guaranteed_bytes()
    return Guarantees(before=total, after=total - before + after, pool=selectors.pool_bytes())
