"""The form that starts a boost: what to change, for how long, and why."""

from datetime import datetime, timedelta
from typing import Any, ClassVar

from django import forms
from django.utils import timezone

from gateway.console.bytes_field import BytesField
from gateway.console.policy_form import PolicyForm
from tenants.contracts import PolicyView
from tenants.rules.policy import LEAST_WEIGHT, MOST_COUNT, MOST_WEIGHT, PRIORITIES

PRESETS = (("900", "15 min"), ("3600", "1 h"), ("14400", "4 h"), ("", "Other"))
UNITS = {"minutes": 60, "hours": 3600, "days": 86400}


def _count(label: str, *, low: int = 1, high: int = MOST_COUNT) -> forms.IntegerField:
    widget = forms.NumberInput(attrs={"class": "input number", "autocomplete": "off"})
    return forms.IntegerField(label=label, required=False, min_value=low, max_value=high, widget=widget)


class BoostForm(forms.Form):
    """Limits for a time. A field that stays empty stays as it is."""

    limits: ClassVar = (
        "kv_hard_bytes",
        "kv_soft_bytes",
        "max_running",
        "max_queued",
        "weight",
        "priority",
        "rpm",
        "tpm",
        "max_context",
        "max_output",
        "host_bytes",
        "disk_bytes",
    )

    kv_hard_bytes = BytesField(label="Ceiling (hard)", required=False)
    kv_soft_bytes = BytesField(label="Guaranteed (soft)", required=False)
    max_running = _count("Requests at once", high=1_000_000)
    max_queued = _count("Waiting requests", low=0, high=1_000_000)
    weight = forms.FloatField(
        required=False,
        min_value=LEAST_WEIGHT,
        max_value=MOST_WEIGHT,
        widget=forms.NumberInput(attrs={"class": "input number", "step": "any", "autocomplete": "off"}),
    )
    priority = forms.ChoiceField(
        label="Class",
        required=False,
        choices=[("", "as it is"), *((name, name) for name in PRIORITIES)],
        widget=forms.Select(attrs={"class": "input"}),
    )
    rpm = _count("Requests a minute", low=0)
    tpm = _count("Tokens a minute", low=0)
    max_context = _count("Context")
    max_output = _count("Output")
    host_bytes = BytesField(label="Host memory", required=False)
    disk_bytes = BytesField(label="Disk", required=False)

    lasts = forms.ChoiceField(label="Lasts", choices=PRESETS, required=False, widget=forms.RadioSelect)
    amount = forms.IntegerField(
        label="How long",
        required=False,
        min_value=1,
        max_value=43_200,
        widget=forms.NumberInput(attrs={"class": "input number", "autocomplete": "off"}),
    )
    unit = forms.ChoiceField(
        label="Unit",
        required=False,
        choices=[(name, name) for name in UNITS],
        widget=forms.Select(attrs={"class": "input", "aria-label": "Unit"}),
    )
    reason = forms.CharField(
        max_length=500,
        help_text="For those who read the history later.",
        error_messages={"required": "Say why: the history and the tenant show it."},
        widget=forms.TextInput(attrs={"class": "input", "autocomplete": "off"}),
    )
    overcommit = forms.BooleanField(label="Guarantee more than fits", required=False)

    def __init__(self, data: Any = None, *, current: PolicyView) -> None:
        super().__init__(data, auto_id="boost_%s", initial={"lasts": "3600", "amount": 30, "unit": "minutes"})
        for name in self.limits:
            self.fields[name].help_text = f"now {PolicyForm.written(name, getattr(current, name))}"
        self._current = current

    @property
    def has_more_errors(self) -> bool:
        """Whether a field that is folded away is wrong."""
        return bool(self.errors.keys() & set(self.limits[3:]) - {"weight", "priority"})

    def clean(self) -> dict[str, Any]:
        """Ask for a length of time where none of the usual ones was chosen, and for at least one limit."""
        cleaned = super().clean() or self.cleaned_data
        if not cleaned.get("lasts") and not cleaned.get("amount") and "amount" not in self.errors:
            self.add_error("amount", "Write how long the boost lasts.")
        if not self.errors and not self.changes():
            raise forms.ValidationError("Change at least one limit: all of them are as they are in force.")
        return cleaned

    def changes(self) -> dict[str, Any]:
        """Return the limits that differ from those in force."""
        named = {name: self.cleaned_data.get(name) for name in self.limits}
        return {
            name: value
            for name, value in named.items()
            if value not in (None, "") and value != getattr(self._current, name)
        }

    def ends_at(self) -> datetime:
        """Return when the boost ends, counted from now."""
        preset = self.cleaned_data.get("lasts")
        seconds = int(preset) if preset else self.cleaned_data["amount"] * UNITS[self.cleaned_data["unit"] or "minutes"]
        return timezone.now() + timedelta(seconds=seconds)
