"""A form's field for bytes: a number and its unit."""

from decimal import Decimal, InvalidOperation
from typing import Any

from django import forms

from tenants.rules.policy import MOST_BYTES

UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


class BytesWidget(forms.MultiWidget):
    """A number and its unit."""

    def __init__(self) -> None:
        number = forms.TextInput(attrs={"class": "input number", "inputmode": "decimal", "autocomplete": "off"})
        unit = forms.Select(attrs={"class": "input", "aria-label": "Unit"}, choices=[(u, u) for u in UNITS])
        super().__init__({"": number, "unit": unit})

    def decompress(self, value: int | None) -> list[str]:
        """Return the number and the largest unit that writes it in whole; nothing for None."""
        if not value:
            return ["" if value is None else "0", "MiB"]
        unit = next(unit for unit in reversed(UNITS) if value % UNITS[unit] == 0)
        return [str(value // UNITS[unit]), unit]


class BytesField(forms.MultiValueField):
    """Bytes, written as a number with a unit; `1.5 GiB` is fine where it comes to whole bytes."""

    is_joined = True  # drawn side by side

    widget = BytesWidget

    def __init__(self, **kwargs: Any) -> None:
        super().__init__((forms.CharField(max_length=32), forms.ChoiceField(choices=[(u, u) for u in UNITS])), **kwargs)

    def compress(self, data_list: list[str]) -> int | None:
        """Return the bytes; None where the field may stay empty and does."""
        number, unit = data_list or ("", "MiB")
        if not self.required and not number.strip():
            return None
        if unit not in UNITS:
            raise forms.ValidationError(f"Choose a unit: {', '.join(UNITS)}.")
        try:
            amount = Decimal(number.strip().replace(",", ".")) * UNITS[unit]
        except InvalidOperation as error:
            raise forms.ValidationError("Write a number, such as 256 or 1.5.") from error
        if not amount.is_finite() or amount < 0 or amount > MOST_BYTES:
            raise forms.ValidationError("Write a number from 0 to 1 EiB.")
        if amount != int(amount):
            raise forms.ValidationError("This is not a whole number of bytes: choose a smaller unit.")
        return int(amount)
