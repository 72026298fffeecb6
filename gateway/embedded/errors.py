"""Errors of embedded mode.

EmbeddedError     a person can fix it; the message is one line and says how
"""


class EmbeddedError(Exception):
    """Embedded mode cannot start or go on; the message is one line that says what to do."""
