"""What those who only look on may ask of a decode daemon, of a real one that is stuck on a silent prefill."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from decode_service.metrics import describe
from decode_service.server import DecodeStagingServer
from protocol.messages import StagingReq, StagingRsp, Subscribed
from runtime.engine_protocol import EngineError
from runtime.metrics import LoopCollector
from tests.unit.embedded import CHUNK_TOKENS, RUN, TOKEN_BYTES, WAIT_S, Stranger, decode_config, private_pool, subscribe

BYTES = CHUNK_TOKENS * TOKEN_BYTES


@pytest.fixture
def server(tmp_path: Path) -> Iterator[DecodeStagingServer]:
    """A server with one grant, whose prefill has asked for it and says nothing more."""
    config = decode_config(tmp_path, stall_warn_s=0.001, drain_s=0.0)
    with DecodeStagingServer(config) as running:
        running.engine.attach_pool(0, private_pool()).result(WAIT_S)
        running.engine.register_room("r", 0, "strangers", CHUNK_TOKENS, RUN).result(WAIT_S)
        stranger = Stranger(running.endpoints["control_0"])
        stranger.say(subscribe(config))
        answer = stranger.hear()
        assert isinstance(answer, Subscribed)
        stranger.say(StagingReq(answer.session, "r", 0, 0, CHUNK_TOKENS))
        while not isinstance(stranger.hear(), StagingRsp):
            pass
        yield running
        stranger.close()


def ask(server: DecodeStagingServer, op: str, **body: Any) -> dict[str, Any]:
    """One command."""
    return server._calls.call(op, **body).result(WAIT_S)


def test_explain_names_room_prefill_and_grant(server: DecodeStagingServer) -> None:
    """By room, by chunk, or whatever holds the ring up: the same answer."""
    answers = [
        ask(server, "explain", **body)["explanations"] for body in ({"room": "r"}, {"room": "r", "chunk": 0}, {}, {"rank": 0})
    ]
    for (found,) in answers:
        assert (found["room"], found["chunk"], found["state"], found["alloc_id"]) == ("r", 0, "writing", 1)
        assert found["waits_for_prefills"] == ["stranger"]
    assert ask(server, "explain", room="none")["explanations"][0]["state"] == "unknown"
    assert ask(server, "explain", rank=7)["explanations"] == []
    with pytest.raises(EngineError, match="chunk"):
        ask(server, "explain", room="r", chunk=-1)


def test_explain_without_a_room_names_a_group_that_is_missing(server: DecodeStagingServer) -> None:
    """Behind what holds the ring up, the room that waits for a group nobody has subscribed for."""
    server.engine.register_room("lonely", 0, "nobody", CHUNK_TOKENS, RUN).result(WAIT_S)
    held, missing = ask(server, "explain")["explanations"]
    assert (held["room"], missing["room"], missing["state"]) == ("r", "lonely", "not_requested")
    assert "waits for prefill group 'nobody', of which nobody is subscribed here" in missing["summary"]


def test_history_has_every_box(server: DecodeStagingServer) -> None:
    """The live grant with its place and time."""
    (rank,) = ask(server, "history")["ranks"]
    (box,) = rank["boxes"]
    assert (box["room"], box["offset"], box["end"], box["ended_at"]) == ("r", 0, BYTES, None)
    assert rank["ring_bytes"] == 2 * BYTES
    assert box["granted_at"] <= rank["now"]


def test_watch_shows_the_rank_with_what_is_blocked(server: DecodeStagingServer) -> None:
    """One look has ring, sessions and explanations."""
    while not (view := ask(server, "watch"))["ranks"][0]["blocked"]:
        pass  # it counts as blocked from a millisecond on
    (rank,) = view["ranks"]
    assert (view["service"], view["reasons"], rank["session_count"]) == ("decode", [], 1)
    assert rank["ring"]["live_bytes"] == BYTES
    assert [found["room"] for found in rank["blocked"]] == ["r"]


def test_it_is_unready_without_a_pool(tmp_path: Path) -> None:
    """And says which rank has none; metrics and view do not need one."""
    with DecodeStagingServer(decode_config(tmp_path)) as bare:
        assert ask(bare, "ready")["reasons"] == ["rank 0: no engine has registered a KV pool yet"]
        assert ask(bare, "measure") == {"ranks": [], "ready": False}
        assert ask(bare, "watch")["ranks"][0]["pool_registered"] is False


def test_metrics_of_a_stuck_ring(server: DecodeStagingServer) -> None:
    """Who pins it, since when, and what every session was sent and has seen."""
    registry = CollectorRegistry()
    registry.register(LoopCollector(lambda: ask(server, "measure"), describe))
    text = generate_latest(registry).decode()
    for line in (
        "pd_staging_ready 1.0",
        f'pd_staging_ring_size_bytes{{rank="0"}} {2.0 * BYTES}',
        f'pd_staging_ring_used_bytes{{rank="0"}} {float(BYTES)}',
        'pd_staging_ring_live_grants{rank="0",state="open"} 1.0',
        'pd_staging_ring_live_grants{rank="0",state="closed"} 0.0',
        'pd_staging_oldest_grant_info{prefill_id="stranger",rank="0",state="open"} 1.0',
        'pd_staging_sessions{rank="0",state="current"} 1.0',
        'pd_staging_session_watermark_sent_round{prefill_id="stranger",rank="0"} 0.0',
        'pd_staging_session_send_failures_total{prefill_id="stranger",rank="0"} 0.0',
        'pd_staging_session_unwritten_grants{prefill_id="stranger",rank="0"} 1.0',
        'pd_staging_responses_total{rank="0",status="granted"} 1.0',
        'pd_staging_grants_total{rank="0"} 1.0',
        'pd_staging_regions_replaced_total{rank="0"} 0.0',
    ):
        assert line in text
    assert 'pd_staging_oldest_grant_age_seconds{rank="0"} ' in text
