"""Errors of the engine.

    EngineError
    ├── ConfigError      a setting is wrong; the message names it and the fix
    ├── ModelError       a model cannot be found, read or run
    ├── ProtocolError    a peer sent what the protocol forbids
    ├── GrammarError     a grammar cannot be used or followed; the message is for whoever wrote it
    ├── CoreError        the core process failed; its requests have ended
    └── InvariantError   our own bookkeeping is wrong; the core stops rather than serve from it

Expected shortage (no block, a full queue) is a result, never one of these.
"""


class EngineError(Exception):
    """Base of all errors of the engine."""


class ConfigError(EngineError):
    """A setting is wrong."""


class ModelError(EngineError):
    """A model cannot be found, read or run."""


class ProtocolError(EngineError):
    """A peer sent what the protocol forbids."""


class GrammarError(EngineError):
    """A grammar cannot be used, or an output cannot follow it any further."""


class CoreError(EngineError):
    """The core process failed."""


class InvariantError(EngineError):
    """Our own bookkeeping is wrong."""
