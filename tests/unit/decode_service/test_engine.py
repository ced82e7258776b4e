"""The decode engine's client: the same commands over the unix socket and inside the process."""

from pathlib import Path

import pytest

from decode_service.engine import DecodeEngineClient
from decode_service.server import DecodeStagingServer
from runtime.engine_protocol import EngineError
from runtime.pool import KvPool
from runtime.pool_layout import arrange_pool
from tests.unit.embedded import LAYOUT, PAGE_SIZE, PAGES, RUN, WAIT_S, decode_config


def test_every_command_over_the_socket(tmp_path: Path) -> None:
    """Ping, pool, room, abort, wait and inspect give the daemon's answers; the answer of the pool names the endpoint."""
    with (
        KvPool.create(tmp_path / "pool", arrange_pool(LAYOUT, PAGE_SIZE, PAGES)) as pool,
        DecodeStagingServer(decode_config(tmp_path)) as server,
        DecodeEngineClient(tmp_path / "run" / "decode.engine.sock") as engine,
    ):
        assert engine.ping().result(WAIT_S)["service"] == "decode"
        answer = engine.register_pool(0, pool.descriptor).result(WAIT_S)
        assert answer["endpoint"] == server.endpoints["control_0"]
        engine.register_room("room", 0, "g", 8, RUN, deadline_s=5.0).result(WAIT_S)
        waiting = engine.wait_room("room", 0)
        engine.abort_room("room", 0, "enough").result(WAIT_S)
        outcome = waiting.result(WAIT_S)
        assert (outcome.rank, outcome.done, outcome.message) == (0, False, "enough")
        assert engine.inspect(0).result(WAIT_S)["ranks"][0]["room_count"] == 0


def test_a_pool_that_does_not_match_its_layout_is_refused(tmp_path: Path) -> None:
    """A file that is smaller than its layout is refused with both sizes, and the daemon goes on."""
    with (
        KvPool.create(tmp_path / "pool", arrange_pool(LAYOUT, PAGE_SIZE, PAGES)) as pool,
        DecodeStagingServer(decode_config(tmp_path)),
        DecodeEngineClient(tmp_path / "run" / "decode.engine.sock") as engine,
    ):
        descriptor = pool.descriptor
        (tmp_path / "pool").unlink()
        (tmp_path / "pool").write_bytes(b"\0" * 100)
        with pytest.raises(EngineError, match=f"has 100 bytes, its layout needs {pool.layout.total_bytes}") as caught:
            engine.register_pool(0, descriptor).result(WAIT_S)
        assert (caught.value.code, caught.value.field) == ("pool", "pool")
        assert engine.ping().result(WAIT_S)
