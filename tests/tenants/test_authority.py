"""Who may do what."""

import pytest

from tenants.authority import lesser, may

RIGHTS = ["read", "keys.write", "audit.read", "manage", "owners.write", "operate"]


@pytest.mark.parametrize(
    ("role", "rights"),
    [
        ("", set()),
        ("nonsense", set()),
        ("viewer", {"read"}),
        ("developer", {"read", "keys.write"}),
        ("admin", {"read", "keys.write", "audit.read", "manage"}),
        ("owner", {"read", "keys.write", "audit.read", "manage", "owners.write"}),
        ("operator", set(RIGHTS)),
    ],
)
def test_each_role_carries_exactly_its_rights(role: str, rights: set[str]) -> None:
    """The table of roles and rights, in full."""
    assert {right for right in RIGHTS if may(role, right)} == rights


def test_the_weaker_of_two_roles() -> None:
    """A key's role is capped by its maker's."""
    assert lesser("owner", "admin") == lesser("admin", "owner") == "admin"
    assert lesser("owner", "") == lesser("", "owner") == ""
