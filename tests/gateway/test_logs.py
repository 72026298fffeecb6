"""Logs of the control plane: one JSON object a line, and never a key in it."""

import json
import logging
import logging.config
from collections.abc import Iterator

import pytest
import structlog

from gateway.logs import logging_config
from tenants.keys import new_key


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> "Iterator[Lines]":
    """Configure logging as a process of the product does, for the length of a test."""
    root = logging.getLogger()
    before = root.handlers[:]
    logging.config.dictConfig(logging_config(terminal=False))
    yield Lines(capsys)
    root.handlers[:] = before


class Lines:
    """What was written to stderr, parsed."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def read(self) -> list[dict[str, object]]:
        """Return the lines since the last call."""
        return [json.loads(line) for line in self._capsys.readouterr().err.splitlines()]


def test_both_kinds_of_logger_write_one_object_a_line(lines: Lines) -> None:
    """Structlog's and the standard library's loggers end in the same form, with name, level and time."""
    structlog.get_logger("ours").info("request ended", status=200)
    logging.getLogger("theirs").warning("took %d ms", 7)
    ours, theirs = lines.read()
    assert (ours["event"], ours["status"], ours["logger"], ours["level"]) == ("request ended", 200, "ours", "info")
    assert (theirs["event"], theirs["logger"], theirs["level"]) == ("took 7 ms", "theirs", "warning")
    assert ours["timestamp"]


def test_no_key_is_logged(lines: Lines) -> None:
    """A key in a message, a field or an exception is cut down to its public id."""
    key = new_key("live")
    structlog.get_logger("ours").info(f"got {key}", header=f"Bearer {key}")
    try:
        raise ValueError(f"bad key {key}")
    except ValueError:
        logging.getLogger("theirs").exception("failed for %s", key)
    found = lines.read()
    assert len(found) == 2
    secret = key.rsplit("_", 1)[1]
    assert all(secret not in json.dumps(line) for line in found)
    assert key.split("_")[2] in str(found[0]["event"])
