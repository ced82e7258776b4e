"""What those who only look on may ask of a prefill daemon, of a real one whose decode rank grants nothing."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from prefill_service.client import PrefillStagingClient
from prefill_service.metrics import describe
from runtime.metrics import LoopCollector
from tests.unit.embedded import CHUNK_TOKENS, WAIT_S, EmbeddedPair, prefill_config


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[EmbeddedPair]:
    """A pair with a room that only the prefill engine knows."""
    with EmbeddedPair(tmp_path, prefill={"stall_warn_s": 0.001}, decode={"park_s": 60.0}) as running:
        running.carry("done", CHUNK_TOKENS)
        running.submit("r", CHUNK_TOKENS)
        yield running
        running.client.engine.abort_room("r", 0).result(WAIT_S)


def ask(client: PrefillStagingClient, op: str, **body: Any) -> dict[str, Any]:
    """One command."""
    return client._calls.call(op, **body).result(WAIT_S)


def test_explain_names_room_and_decode_rank(pair: EmbeddedPair) -> None:
    """By room, by chunk, or whatever has waited longest: the same answer. The decode side knows the rest."""
    for body in ({"room": "r"}, {"room": "r", "chunk": 0}, {}, {"rank": 0}):
        (found,) = ask(pair.client, "explain", **body)["explanations"]
        assert (found["room"], found["chunk"], found["state"], found["peer"]) == ("r", 0, "requested", pair.endpoint)
    (there,) = pair.server._calls.call("explain", room="r").result(WAIT_S)["explanations"]
    assert there["state"] == "parked"
    assert "waits for the decode engine, which has not registered it" in there["summary"]
    assert ask(pair.client, "explain", room="none")["explanations"][0]["state"] == "unknown"
    assert ask(pair.client, "history") == {"ranks": []}


def test_watch_shows_peers_and_what_is_blocked(pair: EmbeddedPair) -> None:
    """One look has the way to every decode rank, the writes, and explanations."""
    while not (view := ask(pair.client, "watch"))["ranks"][0]["blocked"]:
        pass  # it counts as blocked from a millisecond on
    (rank,) = view["ranks"]
    assert (view["service"], view["reasons"], rank["peer_count"], rank["room_count"]) == ("prefill", [], 1, 1)
    assert rank["peers"][0]["state"] == "current"
    assert [found["room"] for found in rank["blocked"]] == ["r"]


def test_metrics_of_a_chunk_that_is_not_granted(pair: EmbeddedPair) -> None:
    """Chunks by state, the session, and what was repeated."""
    registry = CollectorRegistry()
    registry.register(LoopCollector(lambda: ask(pair.client, "measure"), describe))
    text = generate_latest(registry).decode()
    for line in (
        "pd_staging_ready 1.0",
        'pd_staging_peers{rank="0",state="current"} 1.0',
        'pd_staging_peers{rank="0",state="absent"} 0.0',
        'pd_staging_rooms{rank="0"} 1.0',
        'pd_staging_chunks{rank="0",state="requested"} 1.0',
        'pd_staging_chunks{rank="0",state="written"} 0.0',
        'pd_staging_gated_chunks{rank="0"} 0.0',
        f'pd_staging_peer_subscribed{{peer="{pair.endpoint}",rank="0"}} 1.0',
        'pd_staging_sessions_lost_total{rank="0"} 0.0',
        'pd_staging_sends_total{outcome="sent",rank="0"} ',
    ):
        assert line in text
    assert "session_lease_left_seconds" in text


def test_it_is_unready_without_a_pool(tmp_path: Path) -> None:
    """And says which rank has none."""
    with PrefillStagingClient(prefill_config(tmp_path)) as bare:
        assert ask(bare, "ready")["reasons"] == ["rank 0: no engine has registered a KV pool yet"]
        assert ask(bare, "measure") == {"ranks": [], "ready": False}
        assert ask(bare, "watch")["ranks"] == [{"rank": 0, "pool_registered": False}]
