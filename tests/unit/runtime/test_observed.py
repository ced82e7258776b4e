"""A daemon is observed only where it was told to be, and leaves nothing open."""

import socket
import urllib.request
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any

import pytest
from structlog.testing import capture_logs

from lab.ports import free_port_base
from runtime.errors import StartError
from runtime.metrics import Families, Measured
from runtime.observed import Observed


def call(op: str, **body: Any) -> "Future[dict[str, Any]]":
    """A loop that knows nothing."""
    future: Future[dict[str, Any]] = Future()
    future.set_result({"reasons": [], "ranks": [], "ready": True, "op": op, **body})
    return future


def describe(families: Families, measured: Measured) -> None:
    """Nothing beyond the daemon itself."""


def test_without_a_port_nothing_listens() -> None:
    """Port 0 is none, and there is still telemetry."""
    with ExitStack() as undo:
        observed = Observed("decode", "d", "", undo)
        observed.listen("127.0.0.1", 0, call, describe)
        observed.start()
        assert observed.address is None
        assert observed.telemetry.metrics.registry.get_sample_value("process_open_fds") is not None


def test_it_answers_from_start_to_close() -> None:
    """The port is taken by ``listen``, answers after ``start``, and is free again afterwards."""
    port = free_port_base(1)
    with ExitStack() as undo:
        observed = Observed("decode", "d", "", undo)
        observed.listen("127.0.0.1", port, call, describe)
        with pytest.raises(StartError, match="in use"):
            Observed("decode", "e", "", undo).listen("127.0.0.1", port, call, describe)
        observed.start()
        with urllib.request.urlopen(f"{observed.address}/readyz") as answer:
            assert answer.read() == b"ok\n"
    socket.create_server(("127.0.0.1", port)).close()


def test_a_public_port_is_said_aloud() -> None:
    """Nobody can have missed that others may read."""
    with ExitStack() as undo, capture_logs() as logs:
        Observed("decode", "d", "", undo).listen("0.0.0.0", free_port_base(1), call, describe)
    assert [line["event"] for line in logs] == ["http_port_public"]
