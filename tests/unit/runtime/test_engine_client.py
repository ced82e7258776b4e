"""The engine's end of the unix socket by itself; ``test_engine_endpoint.py`` tests it against the other end."""

from pathlib import Path

import pytest

from runtime.engine_client import EngineClient
from runtime.engine_protocol import EngineError


def test_without_a_daemon_requests_wait_and_end_with_the_client(tmp_path: Path) -> None:
    """Nothing blocks and nothing hangs: a request that never left fails when the client is closed."""
    client = EngineClient(tmp_path / "nobody.sock")
    waiting = client.call("ping")
    assert not waiting.done()
    client.close()
    with pytest.raises(EngineError, match="closed"):
        waiting.result(30)


def test_a_cancelled_request_disturbs_nobody(tmp_path: Path) -> None:
    """A future that the caller gave up is left alone when the client ends."""
    with EngineClient(tmp_path / "nobody.sock") as client:
        future = client.call("ping")
        assert future.cancel()
    assert future.cancelled()


def test_what_msgpack_cannot_carry_is_refused_at_once(tmp_path: Path) -> None:
    """A value of the wrong type is the caller's error, raised where it was made."""
    with EngineClient(tmp_path / "nobody.sock") as client, pytest.raises(TypeError):
        client.call("ping", value=object())
