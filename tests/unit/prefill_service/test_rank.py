"""One prefill rank: its pool, its peers, and what it shows of itself."""

from pathlib import Path

import pytest

from prefill_service.client import PrefillStagingClient
from runtime.engine_protocol import EngineError
from tests.unit.embedded import RUN, WAIT_S, EmbeddedPair, prefill_config, private_pool


def test_commands_before_the_pool_are_refused(tmp_path: Path) -> None:
    """Each says that the pool comes first."""
    with PrefillStagingClient(prefill_config(tmp_path)) as client:
        for future in (
            client.engine.submit_chunk("room", 0, ["tcp://127.0.0.1:1"], 0, 8, RUN),
            client.engine.finish_room("room", 0),
            client.engine.abort_room("room", 0),
            client.engine.add_peer(0, "tcp://127.0.0.1:1"),
        ):
            with pytest.raises(EngineError, match="register_pool comes first"):
                future.result(WAIT_S)


def test_the_engine_may_name_the_group(tmp_path: Path) -> None:
    """``group`` and ``prefill_id`` of the registration replace those of the settings, and the peer learns them."""
    with PrefillStagingClient(prefill_config(tmp_path)) as client:
        answer = client.engine.attach_pool(0, private_pool(), group="blue", prefill_id="node-7").result(WAIT_S)
        assert answer == {"rank": 0, "prefill_id": "node-7", "group": "blue"}
        state = client.engine.inspect(0).result(WAIT_S)["ranks"][0]
        assert (state["prefill_id"], state["group"]) == ("node-7", "blue")


def test_a_pool_is_replaced_only_by_its_like_and_only_when_idle(tmp_path: Path) -> None:
    """A live room or another name is in the way, and the refusal says so."""
    with PrefillStagingClient(prefill_config(tmp_path, drain_s=0.0)) as client:
        client.engine.attach_pool(0, private_pool()).result(WAIT_S)
        client.engine.attach_pool(0, private_pool()).result(WAIT_S)
        with pytest.raises(EngineError, match="another layout, page size or name"):
            client.engine.attach_pool(0, private_pool(), group="other").result(WAIT_S)
        client.engine.submit_chunk("room", 0, ["tcp://127.0.0.1:1"], 0, 8, RUN).result(WAIT_S)
        with pytest.raises(EngineError, match="1 rooms are live"):
            client.engine.attach_pool(0, private_pool()).result(WAIT_S)


def test_peers_join_and_leave(tmp_path: Path) -> None:
    """A peer of the settings or of the engine is subscribed to before any room, and can be left again."""
    with EmbeddedPair(tmp_path) as pair:
        pair.client.engine.add_peer(0, pair.endpoint, 0).result(WAIT_S)
        assert all(outcome.done for outcome in pair.carry("room", 8))
        pair.client.engine.remove_peer(0, pair.endpoint).result(WAIT_S)
        assert all(outcome.done for outcome in pair.carry("next", 8))
        state = pair.client.engine.inspect().result(WAIT_S)["ranks"][0]
        assert [peer["endpoint"] for peer in state["peers"]] == [pair.endpoint]
        assert state["planes_open"] == 1


def test_peers_of_the_settings_are_joined_with_the_pool(tmp_path: Path) -> None:
    """``decode_peers`` are connected to as soon as the rank has its pool."""
    with PrefillStagingClient(prefill_config(tmp_path, decode_peers=("tcp://127.0.0.1:1",))) as client:
        client.engine.attach_pool(0, private_pool()).result(WAIT_S)
        state = client.engine.inspect(0).result(WAIT_S)["ranks"][0]
        assert [peer["endpoint"] for peer in state["peers"]] == ["tcp://127.0.0.1:1"]
