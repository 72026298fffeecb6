"""What the forms of limits have in common: a tenant's policy, a share group's limits, a new group's."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import msgspec
from django import forms

from gateway.console.bytes_field import BytesField, BytesWidget
from tenants import selectors
from tenants.console import figures
from tenants.rules.policy import LOW_WATERMARK, MOST_BYTES, kept_part


class Limits(Protocol):
    """What all limits have; a frozen Struct."""

    @property
    def kv_soft_bytes(self) -> int:
        """What is never taken for another owner."""

    @property
    def kv_hard_bytes(self) -> int:
        """What is never passed."""


L = TypeVar("L", bound=Limits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One field's change, in words and figures."""

    label: str
    before: str
    after: str
    note: str = ""


class SoftAndHardForm(forms.Form):
    """A guarantee and the ceiling above it."""

    kv_soft_bytes = BytesField(label="Guaranteed (soft)", help_text="Never taken for another tenant.")
    kv_hard_bytes = BytesField(label="Ceiling (hard)", help_text="Never passed, at any step.")
    overcommit = forms.BooleanField(label="Guarantee more than fits", required=False)

    def clean(self) -> dict[str, Any]:
        """Keep the guarantee under the ceiling."""
        cleaned = super().clean() or self.cleaned_data
        if cleaned.get("kv_soft_bytes", 0) > cleaned.get("kv_hard_bytes", MOST_BYTES):
            self.add_error("kv_soft_bytes", "The guarantee is above the hard limit: lower it, or raise the limit.")
        return cleaned


class LimitsForm(SoftAndHardForm, Generic[L]):
    """The limits of one owner; `base` is what the operator started from, by which conflicts are told.

    A subclass adds its fields, names them in `labels`, and says what `base` holds in `kind`.
    """

    labels: ClassVar[Mapping[str, str]]  # the fields that may change, as a sentence names them
    kind: ClassVar[type]
    over_note: ClassVar[str]  # what becomes of use that a lower hard limit leaves over

    base = forms.CharField(widget=forms.HiddenInput, max_length=2000)

    def clean_base(self) -> L:
        """Read what the form was made from."""
        try:
            base: L = msgspec.json.decode(self.cleaned_data["base"], type=self.kind)
        except (msgspec.DecodeError, UnicodeError) as error:
            raise forms.ValidationError("This form is damaged: reload the page.") from error
        return base

    def changes(self, current: L) -> dict[str, Any]:
        """Return the fields that the form, which is valid, would change in `current`."""
        return {
            name: self.cleaned_data[name] for name in self.labels if self.cleaned_data[name] != getattr(current, name)
        }

    def rebased(self, fresh: L) -> dict[str, str]:
        """Return what a form made from `fresh` would post with the operator's own changes, those of `base`, on top."""
        mine = self.changes(self.cleaned_data["base"])
        after: L = msgspec.structs.replace(fresh, **mine)  # type: ignore[type-var]  # limits are Structs
        data: dict[str, str] = {}
        for name, value in self.initial_of(after).items():
            if name.endswith("_bytes"):
                data[name], data[f"{name}_unit"] = BytesWidget().decompress(value)
            else:
                data[name] = "" if value is None else str(value)
        if self.cleaned_data.get("overcommit"):
            data["overcommit"] = "on"
        return data | {"base": _encoded(fresh)}

    def told(self, before: L, after: L, use_bytes: int = 0) -> list[Change]:
        """Return what differs between two states of the limits, as it is shown."""
        return [
            self.change(name, getattr(before, name), getattr(after, name), use_bytes)
            for name in self.labels
            if getattr(before, name) != getattr(after, name)
        ]

    @classmethod
    def initial_of(cls, limits: L) -> dict[str, Any]:
        """Return limits as the form's first values."""
        return {name: _plain(getattr(limits, name)) for name in cls.labels} | {"base": _encoded(limits)}

    @classmethod
    def written(cls, name: str, value: Any) -> str:
        """Return one value in words."""
        return str(figures.size(value)) if name.endswith("_bytes") else value or "none"

    @classmethod
    def change(cls, name: str, before: Any, after: Any, use_bytes: int = 0) -> Change:
        """Return a field's change as it is shown; a hard limit under the use says what that does."""
        note = ""
        if name == "kv_hard_bytes" and after < use_bytes:
            note = f"{figures.size(use_bytes - after)} of the use is over it: {cls.over_note}"
        return Change(
            label=cls.labels[name], before=cls.written(name, before), after=cls.written(name, after), note=note
        )

    @classmethod
    def action(cls, changes: Mapping[str, Any], current: L) -> str:
        """Return what the button says: the change itself where there is one, else how many."""
        if not changes:
            return "Nothing to apply"
        if len(changes) > 1:
            return f"Apply {len(changes)} changes"
        ((name, after),) = changes.items()
        return cls.action_of(name, getattr(current, name), after)

    @classmethod
    def action_of(cls, name: str, before: Any, after: Any) -> str:
        """Return what the button says for one change."""
        return f"{'Raise' if after > before else 'Lower'} {cls.labels[name]} to {cls.written(name, after)}"


def _encoded(limits: Limits) -> str:
    return msgspec.json.encode(limits).decode()


def _plain(value: Any) -> Any:
    """Return a value as a person writes it: 2, not 2.0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarantees:
    """The sum of all soft limits, of tenants and share groups, against the pool, before and after a change of one."""

    before: int
    own: int  # the one that changes, after
    others: int
    pool: int

    @property
    def after(self) -> int:
        """All guarantees, after."""
        return self.others + self.own

    @property
    def room(self) -> int:
        """Bytes that may be guaranteed: the pool up to its low watermark."""
        return int(self.pool * LOW_WATERMARK)

    @property
    def fits(self) -> bool:
        """Whether the guarantees fit, or rise no further."""
        return not self.pool or self.after <= self.room or self.after <= self.before

    @property
    def kept_percent(self) -> float:
        """What is left of each guarantee, in per cent."""
        return kept_part(self.after, self.pool) * 100

    @property
    def kept_own(self) -> int:
        """What is left of the one that changes."""
        return int(self.own * kept_part(self.after, self.pool))

    @property
    def places(self) -> dict[str, float]:
        """Where the parts of the bar lie, in per cent of its length: the pool, or all guarantees where they are more.

        `frontend/src/lib/guarantees.ts` lays out the same while a slider moves.
        """
        scale = max(self.pool, self.after, 1) / 100
        return {
            "others": round(self.others / scale, 2),
            "own": round(self.own / scale, 2),
            "room": round(self.room / scale, 2),
            "pool": round(self.pool / scale, 2),
        }


def guarantees(*, before: int, after: int) -> Guarantees:
    """Return the sum before and after one owner's part of it goes from `before`, which is in force, to `after`."""
    total = selectors.guaranteed_bytes()
    return Guarantees(before=total, own=after, others=total - before, pool=selectors.pool_bytes())
