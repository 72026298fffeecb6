"""Logs: one JSON object a line on stderr. No prompt, no completion, no token and no key is ever given to it."""

import logging
import sys

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger


def configure_logs(worker_id: str) -> None:
    """Set structlog up for this process, and let what libraries log take the same form."""

    def add_process(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        return {"process": "engine", "worker": worker_id, **event}

    processors: list[Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        add_process,
        structlog.processors.format_exc_info,
    ]
    renderer = structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[*processors, renderer],
        # One write a line, its end included: the core writes to the same file.
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=processors,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
