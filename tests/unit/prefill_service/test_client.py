"""The prefill daemon's life, and rooms that it hands over from inside an engine's process."""

from pathlib import Path

import pytest

from prefill_service.client import PrefillStagingClient
from runtime.engine_protocol import EngineError
from runtime.errors import StartError
from tests.unit.embedded import RUN, WAIT_S, EmbeddedPair, leftovers, prefill_config, private_pool


def test_it_starts_answers_and_stops(tmp_path: Path) -> None:
    """A started client listens for its engine alone, stops with 0 and leaves no file."""
    client = PrefillStagingClient(prefill_config(tmp_path))
    client.start()
    assert client.endpoints == {"engine": str(tmp_path / "run" / "prefill.engine.sock")}
    assert client.engine.ping().result(WAIT_S)["service"] == "prefill"
    client.request_stop()
    assert client.join() == 0
    assert leftovers(tmp_path) == []
    with pytest.raises(EngineError, match="closed"):
        client.engine.ping()


def test_two_clients_of_one_id_do_not_start(tmp_path: Path) -> None:
    """The second one is refused, and the first one goes on."""
    with PrefillStagingClient(prefill_config(tmp_path)) as first:
        with pytest.raises(StartError, match="a daemon with this id is running"):
            PrefillStagingClient(prefill_config(tmp_path)).start()
        assert first.engine.ping().result(WAIT_S)


def test_a_stop_fails_rooms_whose_peer_never_came(tmp_path: Path) -> None:
    """With nobody at the other end the drain runs out, the room fails, and the daemon still ends in order."""
    client = PrefillStagingClient(prefill_config(tmp_path, drain_s=0.0))
    client.start()
    client.engine.attach_pool(0, private_pool()).result(WAIT_S)
    client.engine.submit_chunk("room", 0, ["tcp://127.0.0.1:1"], 0, 8, RUN).result(WAIT_S)
    waiting = client.engine.wait_room("room", 0)
    client.request_stop()
    assert waiting.result(WAIT_S).code == "stopped"
    assert client.join() == 0


def test_a_drain_lets_live_rooms_finish(tmp_path: Path) -> None:
    """A room that is under way when the stop is asked for still arrives; new ones are refused."""
    with EmbeddedPair(tmp_path) as pair:
        pair.server.engine.register_room("room", 0, "prefill", 24, RUN).result(WAIT_S)
        pair.client.engine.submit_chunk("room", 0, [pair.endpoint], 0, 8, RUN).result(WAIT_S)
        pair.client.request_stop()
        with pytest.raises(EngineError, match="draining"):
            pair.client.engine.submit_chunk("late", 0, [pair.endpoint], 0, 8, RUN).result(WAIT_S)
        pair.client.engine.submit_chunk("room", 0, [pair.endpoint], 8, 16, RUN).result(WAIT_S)
        pair.client.engine.finish_room("room", 0).result(WAIT_S)
        assert pair.server.engine.wait_room("room", 0).result(WAIT_S).done
        assert pair.client.join() == 0
