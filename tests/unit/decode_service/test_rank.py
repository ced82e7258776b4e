"""One decode rank's sockets: nothing is lost before the pool is there, and no frame ends the loop."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from decode_service.server import DecodeStagingServer
from protocol.layout import ModelLayout
from protocol.messages import Error, Heartbeat, HeartbeatAck, Refused, Subscribed, ToPrefill, WatermarkUpdate
from protocol.watermark import START
from runtime.engine_protocol import EngineError
from runtime.pool import KvPool
from runtime.pool_layout import arrange_pool
from tests.unit.embedded import LAYOUT, PAGE_SIZE, RUN, WAIT_S, Stranger, decode_config, private_pool, subscribe


@pytest.fixture
def server(tmp_path: Path) -> Iterator[DecodeStagingServer]:
    """A running server without a pool."""
    with DecodeStagingServer(decode_config(tmp_path)) as running:
        yield running


@pytest.fixture
def stranger(server: DecodeStagingServer) -> Iterator[Stranger]:
    """A bare peer of its rank 0."""
    peer = Stranger(server.endpoints["control_0"])
    yield peer
    peer.close()


def first(stranger: Stranger, kind: type[ToPrefill]) -> ToPrefill:
    """The next message of that type."""
    while not isinstance(message := stranger.hear(), kind):
        pass
    return message


def test_a_subscription_before_the_pool_is_answered_after_it(server: DecodeStagingServer, stranger: Stranger) -> None:
    """What prefills say before the engine registers the pool waits, and gets its answer and the watermark then."""
    stranger.say(subscribe(server.config))
    assert server.engine.inspect().result(WAIT_S)["ranks"][0]["pool_registered"] is False
    server.engine.attach_pool(0, private_pool()).result(WAIT_S)
    answer = stranger.hear()
    assert isinstance(answer, Subscribed)
    assert (answer.plane, answer.decode_rank, answer.layout) == ("zmq", 0, LAYOUT)
    assert stranger.hear() == WatermarkUpdate(0, 0, answer.session)


@pytest.mark.parametrize(
    "frames",
    [
        (b"GET / HTTP/1.1",),
        (b"",),
        (b"STAGING_REQ", b"\xc1"),
        (b"NEWS", b"\x80"),
        (b"HEARTBEAT", b"\x80"),
        (b"A",) * 50,
    ],
)
def test_a_bad_frame_disturbs_nobody(server: DecodeStagingServer, stranger: Stranger, frames: tuple[bytes, ...]) -> None:
    """Whatever comes, it is counted and the next message of the same peer is served."""
    server.engine.attach_pool(0, private_pool()).result(WAIT_S)
    stranger.say(subscribe(server.config))
    answer = first(stranger, Subscribed)
    assert isinstance(answer, Subscribed)
    stranger.send(*frames)
    stranger.say(Heartbeat(answer.session, 1, START))
    assert first(stranger, HeartbeatAck) == HeartbeatAck(answer.session, 1)
    counters = server.engine.inspect(0).result(WAIT_S)["ranks"][0]["counters"]
    assert sum(number for name, number in counters.items() if name.startswith("malformed_")) == 1


def test_a_bad_frame_of_a_live_session_is_answered(server: DecodeStagingServer, stranger: Stranger) -> None:
    """Where the frame still says whose session it is, the sender is told what was wrong with which field."""
    server.engine.attach_pool(0, private_pool()).result(WAIT_S)
    stranger.say(subscribe(server.config))
    answer = first(stranger, Subscribed)
    assert isinstance(answer, Subscribed)
    session = answer.session.encode()
    stranger.send(b"HEARTBEAT", b"\x82\xa7session" + bytes([0xD9, len(session)]) + session + b"\xa3seq\xff")
    complaint = first(stranger, Error)
    assert isinstance(complaint, Error)
    assert (complaint.session, complaint.code) == (answer.session, "malformed")
    assert "seq" in complaint.message or "seen" in complaint.message


def test_a_layout_that_cannot_be_matched_is_refused_with_a_diff(server: DecodeStagingServer, stranger: Stranger) -> None:
    """A prefill of another grid hears what differs."""
    server.engine.attach_pool(0, private_pool()).result(WAIT_S)
    stranger.say(subscribe(server.config, chunk_tokens=server.config.chunk_tokens + 1))
    refusal = first(stranger, Refused)
    assert isinstance(refusal, Refused)
    assert [row.field for row in refusal.diff] == ["chunk_tokens"]


def test_a_ring_smaller_than_a_chunk_is_refused(tmp_path: Path) -> None:
    """The refusal names the setting, both sizes and what to do, and the rank still has no pool."""
    with DecodeStagingServer(decode_config(tmp_path, ring_bytes=100)) as server:
        with pytest.raises(EngineError, match=r"ring_bytes: .* the ring has 100; raise ring_bytes") as caught:
            server.engine.attach_pool(0, private_pool()).result(WAIT_S)
        assert (caught.value.code, caught.value.field) == ("ring_too_small", "ring_bytes")
        with pytest.raises(EngineError, match="register_pool comes first"):
            server.engine.register_room("room", 0, "g", 8, RUN).result(WAIT_S)


def test_a_pool_is_replaced_only_by_its_like_and_only_when_idle(server: DecodeStagingServer) -> None:
    """An engine that restarted registers again; a live room or another layout is in the way, and the refusal says so."""
    server.engine.attach_pool(0, private_pool()).result(WAIT_S)
    server.engine.register_room("room", 0, "g", 8, RUN).result(WAIT_S)
    with pytest.raises(EngineError, match="1 rooms are live"):
        server.engine.attach_pool(0, private_pool()).result(WAIT_S)
    server.engine.abort_room("room", 0).result(WAIT_S)
    server.engine.wait_room("room", 0).result(WAIT_S)
    server.engine.attach_pool(0, private_pool()).result(WAIT_S)
    one_layer = replace(LAYOUT, model=ModelLayout(LAYOUT.model.layers[:1]), stage_bounds=(0, 1))
    other = arrange_pool(one_layer, PAGE_SIZE, 4)
    with pytest.raises(EngineError, match="another layout"):
        server.engine.attach_pool(0, KvPool.over(bytearray(other.total_bytes), other)).result(WAIT_S)
