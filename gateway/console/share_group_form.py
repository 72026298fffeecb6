"""The forms of a share group, and a change of its limits in words."""

from typing import Any, ClassVar

import msgspec
from django import forms

from gateway.console.bytes_field import BytesField
from gateway.console.limits_form import LimitsForm, SoftAndHardForm
from tenants.contracts import ShareGroupView

FIRST_HARD_BYTES = 32 << 20


class GroupLimits(msgspec.Struct, frozen=True):
    """What of a group the editor changes."""

    description: str
    kv_soft_bytes: int
    kv_hard_bytes: int


class GroupFields(SoftAndHardForm):
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


class GroupLimitsForm(GroupFields, LimitsForm[GroupLimits]):
    """A group's limits."""

    labels: ClassVar = {
        "description": "description",
        "kv_soft_bytes": "guaranteed KV",
        "kv_hard_bytes": "hard limit",
    }
    kind = GroupLimits
    over_note = "nothing more is kept, and it is given up."

    @classmethod
    def action_of(cls, name: str, before: Any, after: Any) -> str:
        """Return what the button says for one change."""
        return "Save description" if name == "description" else super().action_of(name, before, after)


def limits(group: ShareGroupView) -> GroupLimits:
    """Return what of a group the editor changes."""
    return GroupLimits(
        description=group.description, kv_soft_bytes=group.kv_soft_bytes, kv_hard_bytes=group.kv_hard_bytes
    )
