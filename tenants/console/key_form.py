"""The form of a new key."""

from datetime import UTC, date, datetime, timedelta
from typing import Any

from django import forms
from django.core.validators import MaxValueValidator
from django.utils import timezone

from tenants.contracts import KeyOptions

LIFETIMES = (
    ("", "Never"),
    ("7", "In 7 days"),
    ("30", "In 30 days"),
    ("90", "In 90 days"),
    ("365", "In a year"),
    ("date", "On a date…"),
)
LAST_DAY = date(2999, 12, 31)


class KeyForm(forms.Form):
    """Name, models and expiry; `tenants.services.keys` has the last word on all three."""

    name = forms.CharField(
        max_length=80,
        error_messages={"required": "Give the key a name, so that it can be told from the others."},
        help_text="What it is for, such as “nightly summaries”.",
        widget=forms.TextInput(attrs={"class": "input", "autocomplete": "off", "autofocus": True}),
    )
    lifetime = forms.ChoiceField(
        label="Expires", choices=LIFETIMES, required=False, widget=forms.Select(attrs={"class": "input"})
    )
    expires_on = forms.DateField(
        label="Last day",
        required=False,
        validators=[MaxValueValidator(LAST_DAY, "Choose a day before the year 3000.")],
        help_text="The key works to the end of this day, UTC.",
        widget=forms.DateInput(attrs={"class": "input", "type": "date"}),
    )
    models = forms.MultipleChoiceField(
        required=False,
        help_text="None ticked: every model of this tenant, later ones included.",
        widget=forms.CheckboxSelectMultiple,
    )

    def __init__(self, *args: Any, models: list[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["models"] = forms.MultipleChoiceField(
            choices=[(name, name) for name in models],
            required=False,
            help_text=self.fields["models"].help_text,
            widget=forms.CheckboxSelectMultiple,
        )

    def clean(self) -> dict[str, Any]:
        """Ask for the date where the lifetime says there is one."""
        cleaned = super().clean() or self.cleaned_data
        if cleaned.get("lifetime") == "date" and not cleaned.get("expires_on") and "expires_on" not in self.errors:
            self.add_error("expires_on", "Choose the last day on which the key works.")
        return cleaned

    def options(self) -> KeyOptions:
        """Return what the key may do, of a form that is valid."""
        return KeyOptions(models=tuple(self.cleaned_data["models"]), expires_at=self._expires_at())

    def _expires_at(self) -> float:
        lifetime = self.cleaned_data["lifetime"]
        if lifetime == "date":
            day = self.cleaned_data["expires_on"]
            return (datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(days=1)).timestamp()
        return (timezone.now() + timedelta(days=int(lifetime))).timestamp() if lifetime else 0.0
