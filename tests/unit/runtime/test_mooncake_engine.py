"""What holds of Mooncake's module without the package; ``tests/engines`` holds the real one to its promises."""

import os

import pytest

from runtime import mooncake_engine


def test_connections_are_always_pooled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the environment says: one connection per write runs a busy host out of ports. Other settings stay."""
    monkeypatch.setenv("MC_TCP_ENABLE_CONNECTION_POOL", "0")
    monkeypatch.setenv("MC_LOG_LEVEL", "INFO")
    for name in ("GLOG_minloglevel", "MC_HANDSHAKE_CONNECT_TIMEOUT"):
        monkeypatch.setenv(name, "1")
    mooncake_engine.prepare_environment()
    assert (os.environ["MC_TCP_ENABLE_CONNECTION_POOL"], os.environ["MC_LOG_LEVEL"]) == ("1", "INFO")
