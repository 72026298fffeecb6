"""Structured logs of the control plane's processes: one JSON object a line on stderr.

Keys, prompts and completions are never logged: nothing here logs bodies, and `redact` masks what looks like a key in
any event, such as one that an exception's message quotes.
"""

import logging
import re
import sys
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, Processor

KEY = re.compile(r"tg_(live|op|adm)_([0-9A-Za-z]{1,12})[0-9A-Za-z_]*")


class StderrHandler(logging.StreamHandler[TextIO]):
    """Write to what `sys.stderr` is now, not to what it was at configuration: tests replace it."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]  # an attribute in the parent, which nobody sets here
        """The present stderr."""
        return sys.stderr


def redact(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Mask every key in the event's texts down to its public id."""
    return {name: KEY.sub(r"tg_\1_\2_…", value) if isinstance(value, str) else value for name, value in event.items()}


def logging_config(*, terminal: bool | None = None) -> dict[str, Any]:
    """Return Django's LOGGING. `terminal`: readable lines instead of JSON; default: whether stderr is a terminal."""
    readable = sys.stderr.isatty() if terminal is None else terminal
    shared = _shared_processors()
    last: Processor = structlog.dev.ConsoleRenderer() if readable else structlog.processors.JSONRenderer()
    before: list[Processor] = [] if readable else [structlog.processors.format_exc_info]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    formatter = {
        "()": structlog.stdlib.ProcessorFormatter,
        "foreign_pre_chain": shared,
        "processors": [structlog.stdlib.ProcessorFormatter.remove_processors_meta, *before, redact, last],
    }
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"structured": formatter},
        "handlers": {"stderr": {"class": "gateway.logs.StderrHandler", "formatter": "structured"}},
        "root": {"handlers": ["stderr"], "level": "INFO"},
        "loggers": {
            # Django logs each 4xx as a warning; the access log has them.
            "django": {"handlers": [], "level": "INFO", "propagate": True},
            "django.request": {"level": "ERROR"},
            "django.security.DisallowedHost": {"level": "CRITICAL"},  # anybody can send one: it is a 400 like others
            "django.server": {"handlers": [], "level": "INFO", "propagate": True},
            "httpx": {"level": "WARNING"},
            # Uvicorn brings handlers of its own: these lines take them away again.
            "uvicorn": {"handlers": [], "level": "INFO", "propagate": True},
            "uvicorn.error": {"handlers": [], "level": "INFO", "propagate": True},
            "uvicorn.access": {"handlers": [], "level": "WARNING", "propagate": True},
            "celery.beat": {"level": "WARNING"},
        },
    }


def _shared_processors() -> list[Processor]:
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        structlog.processors.UnicodeDecoder(),
    ]
