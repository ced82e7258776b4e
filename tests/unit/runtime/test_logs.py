"""Logs are one JSON object per line unless a person is watching."""

import io
import json
from collections.abc import Iterator

import pytest
import structlog

from runtime.logs import configure_logs, logger


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """It is one."""
        return True


@pytest.fixture(autouse=True)
def restored_logs() -> Iterator[None]:
    """Leave the logging of the test process as it was."""
    yield
    structlog.reset_defaults()


def test_lines_are_json_with_what_is_bound() -> None:
    """A line carries the event, its level, the time in UTC, what is bound and what is given, whatever its type."""
    stream = io.StringIO()
    configure_logs("info", stream)
    logger(service="decode-service").info("chunk_completed", room="r", route=b"\xff\x01", rank=3)
    line = json.loads(stream.getvalue())
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "event": "chunk_completed",
        "level": "info",
        "service": "decode-service",
        "room": "r",
        "route": "\ufffd\x01",
        "rank": 3,
    }


def test_errors_keep_their_traceback() -> None:
    """An exception is part of its line, so that a log of lines stays one."""
    stream = io.StringIO()
    configure_logs("info", stream)
    try:
        json.loads("{")
    except json.JSONDecodeError:
        logger().exception("loop_failed")
    (line,) = stream.getvalue().splitlines()
    assert json.loads(line)["exception"][0]["exc_type"] == "JSONDecodeError"


def test_level_cuts_off_what_is_below() -> None:
    """Only lines from the level upwards are written."""
    stream = io.StringIO()
    configure_logs("warning", stream)
    logger().info("peer_joined")
    logger().warning("peer_left")
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["peer_left"]


def test_a_terminal_gets_text() -> None:
    """A person at a terminal reads text, not JSON."""
    stream = Terminal()
    configure_logs("info", stream)
    logger().info("daemon_ready")
    assert "daemon_ready" in stream.getvalue()
    assert not stream.getvalue().startswith("{")
