"""The forms of a share group, and what a change of it would do."""

from typing import Any

import msgspec
from django import forms

from gateway.console.bytes_field import BytesField, BytesWidget
from gateway.console.policy_form import Change, written
from tenants.console import figures
from tenants.contracts import ShareGroupView
from tenants.rules.policy import MOST_BYTES

LABELS = {"description": "description", "kv_soft_bytes": "guaranteed KV", "kv_hard_bytes": "hard limit"}
FIRST_HARD_BYTES = 32 << 20


class Limits(msgspec.Struct, frozen=True):
    """What of a group the editor changes."""

    description: str
    kv_soft_bytes: int
    kv_hard_bytes: int


class GroupFields(forms.Form):
    """What both forms ask for."""

    description = forms.CharField(
        required=False,
        max_length=500,
        help_text="What its members have in common.",
        widget=forms.TextInput(attrs={"class": "input", "autocomplete": "off"}),
    )
    kv_soft_bytes = BytesField(label="Guaranteed (soft)", help_text="Of shared KV, never taken for a tenant.")
    kv_hard_bytes = BytesField(label="Ceiling (hard)", help_text="Of shared KV, never passed, at any step.")

    def clean_kv_hard_bytes(self) -> int:
        """Take what is above zero."""
        hard: int = self.cleaned_data["kv_hard_bytes"]
        if not hard:
            raise forms.ValidationError("Write more than 0: a group without memory shares nothing.")
        return hard

    def clean(self) -> dict[str, Any]:
        """Keep the guarantee under the ceiling."""
        cleaned = super().clean() or self.cleaned_data
        if cleaned.get("kv_soft_bytes", 0) > cleaned.get("kv_hard_bytes", MOST_BYTES):
            self.add_error("kv_soft_bytes", "The guarantee is above the hard limit: lower it, or raise the limit.")
        return cleaned


class NewGroupForm(GroupFields):
    """A new group."""

    name = forms.CharField(
        max_length=40,
        help_text="a to z, digits and dashes; it never changes.",
        error_messages={"required": "Give the group a name, such as “support”."},
        widget=forms.TextInput(
            attrs={"class": "input mono", "autocomplete": "off", "autocapitalize": "none", "autofocus": True}
        ),
    )
    field_order = ("name", "description", "kv_soft_bytes", "kv_hard_bytes")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.initial = {"kv_soft_bytes": 0, "kv_hard_bytes": FIRST_HARD_BYTES}


class LimitsForm(GroupFields):
    """A group's limits; `base` is what the operator started from, by which conflicts are told."""

    base = forms.CharField(widget=forms.HiddenInput, max_length=2000)

    def clean_base(self) -> Limits:
        """Read what the form was made from."""
        try:
            return msgspec.json.decode(self.cleaned_data["base"], type=Limits)
        except (msgspec.DecodeError, UnicodeError) as error:
            raise forms.ValidationError("This form is damaged: reload the page.") from error

    def changes(self, current: Limits) -> dict[str, Any]:
        """Return the fields that the form, which is valid, would change in `current`."""
        return {name: self.cleaned_data[name] for name in LABELS if self.cleaned_data[name] != getattr(current, name)}

    def rebased(self, fresh: Limits) -> "LimitsForm":
        """Return a form made from `fresh` with the operator's own changes, those of `base`, on top."""
        mine = self.changes(self.cleaned_data["base"])
        data = {"base": encoded(fresh), "description": mine.get("description", fresh.description)}
        for name in ("kv_soft_bytes", "kv_hard_bytes"):
            data[name], data[f"{name}_unit"] = BytesWidget().decompress(mine.get(name, getattr(fresh, name)))
        return LimitsForm(data)


def limits(group: ShareGroupView) -> Limits:
    """Return what of a group the editor changes."""
    return Limits(description=group.description, kv_soft_bytes=group.kv_soft_bytes, kv_hard_bytes=group.kv_hard_bytes)


def encoded(base: Limits) -> str:
    """Return limits as `base` carries them."""
    return msgspec.json.encode(base).decode()


def initial(base: Limits) -> dict[str, Any]:
    """Return limits as the form's first values."""
    return msgspec.structs.asdict(base) | {"base": encoded(base)}


def change(name: str, before: Any, after: Any, use_bytes: int = 0) -> Change:
    """Return a field's change as it is shown; a hard limit under the use says what that does."""
    note = ""
    if name == "kv_hard_bytes" and after < use_bytes:
        note = f"{figures.size(use_bytes - after)} of the use is over it: nothing more is kept, and it is given up."
    if name == "description":
        return Change(label=LABELS[name], before=before or "none", after=after or "none")
    return Change(label=LABELS[name], before=written(name, before), after=written(name, after), note=note)


def action(changes: dict[str, Any], current: Limits) -> str:
    """Return what the button says: the change itself where there is one, else how many."""
    if not changes:
        return "Nothing to apply"
    if len(changes) > 1:
        return f"Apply {len(changes)} changes"
    ((name, after),) = changes.items()
    if name == "description":
        return "Save description"
    return f"{'Raise' if after > getattr(current, name) else 'Lower'} {LABELS[name]} to {written(name, after)}"
