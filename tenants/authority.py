"""Who may do what: pure rules over roles. An operator may do everything; a tenant's roles are listed below.

owner      everything of an admin, and gives and takes the owner role
admin      members, projects, name and time zone, management keys, registered prefixes, audit
developer  API keys
viewer     reads
"""

from typing import Literal

RoleName = Literal["operator", "owner", "admin", "developer", "viewer"]
Right = Literal["read", "keys.write", "audit.read", "manage", "owners.write", "operate"]

_RANK: dict[str, int] = {"viewer": 1, "developer": 2, "admin": 3, "owner": 4, "operator": 5}
_NEEDS: dict[Right, int] = {"read": 1, "keys.write": 2, "audit.read": 3, "manage": 3, "owners.write": 4, "operate": 5}


def may(role: str, right: Right) -> bool:
    """Tell whether `role` (empty: none) carries `right`."""
    return _RANK.get(role, 0) >= _NEEDS[right]


def lesser(one: str, other: str) -> str:
    """Return the weaker of two roles; empty is weaker than all."""
    return one if _RANK.get(one, 0) <= _RANK.get(other, 0) else other
