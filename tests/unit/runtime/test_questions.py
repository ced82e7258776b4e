"""A person's question finds a daemon by port or by socket, and says plainly when it does not."""

from pathlib import Path

import pytest

from decode_service.server import DecodeStagingServer
from lab.ports import free_port_base
from runtime.questions import HttpDaemon, NoAnswer, SocketDaemon
from tests.unit.embedded import decode_config


def test_both_ways_have_the_same_answer(tmp_path: Path) -> None:
    """Over HTTP, by port alone as well, and over the engine's socket."""
    port = free_port_base(1)
    config = decode_config(tmp_path, http_port=port)
    with DecodeStagingServer(config):
        local = SocketDaemon(config.engine_socket)
        answers = [
            daemon.ask("explain", room="r")
            for daemon in (HttpDaemon(f"http://127.0.0.1:{port}/"), HttpDaemon(f"{port}"), local)
        ]
        assert answers == [{"explanations": []}] * 3
        assert HttpDaemon(f"{port}").ask("watch")["service"] == "decode"
        with pytest.raises(NoAnswer, match="chunk: expected a whole number"):
            HttpDaemon(f"{port}").ask("explain", chunk="x")
        with pytest.raises(NoAnswer, match="chunk"):
            local.ask("explain", chunk="x")
        local.close()


def test_nobody_there(tmp_path: Path) -> None:
    """The address is named, and what may be wrong."""
    port = free_port_base(1)
    with pytest.raises(NoAnswer, match=f"http://127.0.0.1:{port} was not reached: .*is the daemon running"):
        HttpDaemon(f"127.0.0.1:{port}").ask("watch")
    with pytest.raises(NoAnswer, match="no daemon runs there"):
        SocketDaemon(tmp_path / "none.sock")
    with pytest.raises(NoAnswer):
        HttpDaemon("127.0.0.1:none").ask("watch")
