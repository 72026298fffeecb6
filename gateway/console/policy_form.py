"""The form of a policy, and a change of it in words."""

from collections.abc import Iterable
from typing import Any, ClassVar

import msgspec
from django import forms

from gateway.console.bytes_field import BytesField
from gateway.console.limits_form import Change, LimitsForm
from tenants.console import figures
from tenants.contracts import PolicyView, ShadowLimits
from tenants.rules.policy import MOST_COUNT, PRIORITIES, SHADOW_FIELDS

NO_GROUP = "None"
NO_TRIAL = ShadowLimits()
TRIAL = "trial_"  # before the name of a limit: the field of its trial


def _count(label: str, *, low: int, high: int = MOST_COUNT, hint: str = "", required: bool = True) -> Any:
    widget = forms.NumberInput(attrs={"class": "input number", "autocomplete": "off"})
    return forms.IntegerField(
        label=label, min_value=low, max_value=high, help_text=hint, widget=widget, required=required
    )


def _trial(label: str, low: int = 1, high: int = MOST_COUNT) -> Any:
    return _count(label, low=low, high=high, required=False)


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
        "host_bytes": "host memory",
        "disk_bytes": "disk",
        "encrypt_disk": "encryption of the disk",
        "shadow": "limits on trial",
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
    host_bytes = BytesField(label="Host memory", help_text="Where what is swapped out waits.")
    disk_bytes = BytesField(label="Disk", help_text="The same ceiling on disk.")
    encrypt_disk = forms.BooleanField(label="Encrypt what is on disk", required=False)

    trial_kv_hard_bytes = BytesField(label="Ceiling (hard)", required=False)
    trial_max_running = _trial("Requests at once", high=1_000_000)
    trial_max_queued = _trial("Waiting requests", low=0, high=1_000_000)
    trial_rpm = _trial("Requests a minute")
    trial_tpm = _trial("Tokens a minute")
    trial_max_context = _trial("Context")
    trial_max_output = _trial("Output")

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

    def clean_trial_kv_hard_bytes(self) -> int | None:
        """Take what is above zero, or nothing."""
        hard: int | None = self.cleaned_data["trial_kv_hard_bytes"]
        if hard == 0:
            raise forms.ValidationError("Write more than 0, or leave it empty to try nothing.")
        return hard

    def clean(self) -> dict[str, Any]:
        """Gather the limits on trial."""
        cleaned = super().clean()
        cleaned["shadow"] = ShadowLimits(**{name: cleaned.get(TRIAL + name) for name in SHADOW_FIELDS})
        return cleaned

    def told(self, before: PolicyView, after: PolicyView, use_bytes: int = 0) -> list[Change]:
        """Return what differs between two policies; each limit on trial stands for itself."""
        bare = {"shadow": NO_TRIAL}
        kept = super().told(
            msgspec.structs.replace(before, **bare), msgspec.structs.replace(after, **bare), use_bytes=use_bytes
        )
        trials = [
            Change(label=f"trial of {self.labels[name]}", before=self.tried(name, old), after=self.tried(name, new))
            for name in SHADOW_FIELDS
            if (old := getattr(before.shadow, name)) != (new := getattr(after.shadow, name))
        ]
        return kept + trials

    @classmethod
    def tried(cls, name: str, value: int | None) -> str:
        """Return the value of a limit on trial in words."""
        return "none" if value is None else cls.written(name, value)

    @classmethod
    def initial_of(cls, limits: PolicyView) -> dict[str, Any]:
        """Return a policy as the form's first values."""
        initial = super().initial_of(limits)
        del initial["shadow"]
        return initial | {TRIAL + name: getattr(limits.shadow, name) for name in SHADOW_FIELDS}

    @classmethod
    def written(cls, name: str, value: Any) -> str:
        """Return one value of a policy in words."""
        if name == "shadow":
            set_ = msgspec.structs.asdict(value).items()
            return (
                ", ".join(f"{cls.labels[one]} {cls.written(one, limit)}" for one, limit in set_ if limit is not None)
                or "none"
            )
        if name == "encrypt_disk":
            return "on" if value else "off"
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
        if name == "shadow":
            return _trial_action(cls, before, after)
        if name == "encrypt_disk":
            return "Encrypt the disk" if after else "Stop encrypting the disk"
        if name == "priority":
            return f"Set class to {after}"
        if name == "share_group":
            return f"Join share group {after}" if after else f"Leave share group {before}"
        if name in ("rpm", "tpm") and not after:
            return f"Remove the limit of {cls.labels[name]}"
        if name in ("rpm", "tpm") and not before:
            return f"Limit {cls.labels[name]} to {cls.written(name, after)}"
        return super().action_of(name, before, after)


def _trial_action(form: type[PolicyForm], before: ShadowLimits, after: ShadowLimits) -> str:
    changed = [name for name in SHADOW_FIELDS if getattr(before, name) != getattr(after, name)]
    if len(changed) > 1:
        return f"Change {len(changed)} trials"
    (name,) = changed
    value = getattr(after, name)
    if value is None:
        return f"End the trial of {form.labels[name]}"
    return f"Try {form.labels[name]} of {form.written(name, value)}"
