"""The prefill engine's client: the same commands over the unix socket and inside the process."""

from pathlib import Path

from prefill_service.client import PrefillStagingClient
from prefill_service.engine import PrefillEngineClient
from runtime.pool import KvPool
from runtime.pool_layout import arrange_pool
from tests.unit.embedded import LAYOUT, PAGE_SIZE, PAGES, RUN, WAIT_S, prefill_config

PEER = "tcp://127.0.0.1:1"


def test_every_command_over_the_socket(tmp_path: Path) -> None:
    """Ping, pool, peers, chunks, abort, wait and inspect give the daemon's answers."""
    with (
        KvPool.create(tmp_path / "pool", arrange_pool(LAYOUT, PAGE_SIZE, PAGES)) as pool,
        PrefillStagingClient(prefill_config(tmp_path, drain_s=0.0)),
        PrefillEngineClient(tmp_path / "run" / "prefill.engine.sock") as engine,
    ):
        assert engine.ping().result(WAIT_S)["service"] == "prefill"
        assert engine.register_pool(0, pool.descriptor, group="g").result(WAIT_S)["group"] == "g"
        engine.add_peer(0, PEER).result(WAIT_S)
        trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
        engine.submit_chunk("room", 0, [PEER], 0, 8, RUN, trace).result(WAIT_S)
        engine.finish_room("room", 0).result(WAIT_S)
        waiting = engine.wait_room("room", 0)
        engine.abort_room("room", 0, "enough").result(WAIT_S)
        assert waiting.result(WAIT_S).message == "enough"
        engine.remove_peer(0, PEER).result(WAIT_S)
        assert engine.inspect(0).result(WAIT_S)["ranks"][0]["rooms"] == []
