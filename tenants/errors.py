"""Errors of the domain.

TenantsError
├── Invalid              a value breaks a rule; `field` names it, the message says what to write instead
│   └── PolicyInvalid
├── Conflict             the change does not fit what is there now
│   └── StaleVersion     somebody else changed it first; `current` is the version to read again
├── NotFound             no such row, or one that the caller may not see
└── Forbidden            the caller sees it and may not do this
NoTenantScope            our own mistake: a query of tenant data without a tenant (never shown to a client)
PepperMissing            KEY_PEPPER is not set
"""


class TenantsError(Exception):
    """Base of the errors that a caller can cause."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class Invalid(TenantsError):
    """A value breaks a rule."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class PolicyInvalid(Invalid):
    """A policy breaks a rule."""


class Conflict(TenantsError):
    """The change does not fit what is there now."""


class StaleVersion(Conflict):
    """The policy or share group has moved on since the caller read it."""

    def __init__(self, expected: int, current: int, what: str = "policy") -> None:
        super().__init__(f"the {what} is at version {current}, not {expected}: read it again and repeat the change")
        self.expected = expected
        self.current = current


class NotFound(TenantsError):
    """No such row, or one that the caller may not see."""


class Forbidden(TenantsError):
    """The caller may not do this."""


class NoTenantScope(RuntimeError):
    """A query of tenant data named no tenant."""


class PepperMissing(RuntimeError):
    """KEY_PEPPER is not set."""
