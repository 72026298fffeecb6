"""Logs: one JSON object a line on stderr. No prompt, no completion, no token and no key is ever given to it."""

import sys

import structlog
from structlog.typing import EventDict, WrappedLogger


def configure_logs(worker_id: str) -> None:
    """Set structlog up for this process."""

    def add_process(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        return {"process": "engine", "worker": worker_id, **event}

    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            add_process,
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
