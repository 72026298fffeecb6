"""What the id of a session may be. Clients choose ids; they are the tenant's, whichever key or project uses them."""

from tenants.errors import Invalid

MOST_BYTES = 256  # UTF-8, as the worker protocol has it


def check(field: str, session: str) -> str:
    """Return `session`, if a session may have this id.

    Raises:
        Invalid: names `field` and the fix.
    """
    if not session:
        raise Invalid(field, f"{field} is empty: name a session")
    if not session.isprintable():
        raise Invalid(field, f"{field} takes printable characters alone")
    if len(session.encode()) > MOST_BYTES:
        raise Invalid(field, f"{field} is over {MOST_BYTES} bytes: send a shorter one")
    return session
