"""What a key's options may be."""

from datetime import UTC, datetime
from typing import Any

import pytest

from tenants.contracts import KeyOptions
from tenants.errors import Invalid
from tenants.rules.keys import checked_options

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def test_options_come_back_in_normal_form() -> None:
    """Host bits are cleared, doubles go, scopes have one order."""
    options = KeyOptions(
        ip_ranges=("10.1.2.3/8", "10.0.0.0/8", "::1"), scopes=("models", "generate"), models=(" tiny ",)
    )
    checked = checked_options(options, NOW)
    assert checked.ip_ranges == ("10.0.0.0/8", "::1/128")
    assert checked.scopes == ("generate", "models")
    assert checked.models == ("tiny",)


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("scopes", {"scopes": ()}),
        ("scopes", {"scopes": ("generate", "admin")}),
        ("models", {"models": ("",)}),
        ("models", {"models": ("a\0b",)}),
        ("models", {"models": ("m",) * 101}),
        ("ip_ranges", {"ip_ranges": ("10.0.0.0/33",)}),
        ("ip_ranges", {"ip_ranges": ("example.com",)}),
        ("expires_at", {"expires_at": NOW.timestamp()}),
        ("expires_at", {"expires_at": float("nan")}),
        ("expires_at", {"expires_at": 1e300}),
        ("rpm", {"rpm": -1}),
        ("tpm", {"tpm": 2**31}),
    ],
)
def test_a_wrong_option_is_named(field: str, options: dict[str, Any]) -> None:
    """Each option is checked, and the error names it."""
    with pytest.raises(Invalid) as caught:
        checked_options(KeyOptions(**options), NOW)
    assert caught.value.field == field
