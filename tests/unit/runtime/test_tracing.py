"""Tracing is there when it was asked for, and an error says what is missing."""

import sys

import pytest

from runtime.errors import StartError
from runtime.tracing import open_tracer


def test_no_endpoint_no_tracer() -> None:
    """Nothing is imported either."""
    assert open_tracer("", "s", "i", lambda _: None) is None


def test_without_the_extra_the_daemon_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """An endpoint that was asked for is no wish to be ignored."""
    monkeypatch.setitem(sys.modules, "runtime.otlp", None)
    with pytest.raises(StartError, match=r"install pd-staging\[otel\]"):
        open_tracer("http://127.0.0.1:1/v1/traces", "s", "i", lambda _: None)


def test_with_the_extra_there_is_one() -> None:
    """It can be closed without ever having been used."""
    tracer = open_tracer("http://127.0.0.1:1/v1/traces", "s", "i", lambda _: None)
    assert tracer is not None
    tracer.close()
