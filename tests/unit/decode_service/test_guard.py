"""The border of a decode rank: what each key may say, over real sockets to a real server."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from decode_service.guard import SUBSCRIBE_BURST, WASTE_BURST, Arrival, Denial, Guard
from decode_service.server import DecodeStagingServer
from protocol.codec import encode, encode_data
from protocol.messages import (
    Abort,
    ChunkReady,
    DataPiece,
    Error,
    GrantStatus,
    Heartbeat,
    HeartbeatAck,
    Refused,
    RefusedCode,
    StagingReq,
    StagingRsp,
    Subscribe,
    Subscribed,
    ToPrefill,
)
from protocol.watermark import START
from runtime.logs import logger
from runtime.security import ClientSecurity
from tests.unit.embedded import CHUNK_TOKENS, LAYOUT, RUN, TOKEN_BYTES, WAIT_S, Stranger, decode_config, private_pool, subscribe
from tests.unit.keys import KeyRing

SIZE = CHUNK_TOKENS * TOKEN_BYTES


class Border:
    """A protected server with a pool, and clients that each have a key."""

    def __init__(self, folder: Path) -> None:
        self.ring = KeyRing(folder, "a", "b", "c")
        self.server = DecodeStagingServer(decode_config(folder, **self.ring.decode))
        self.server.start()
        self.server.engine.attach_pool(0, private_pool()).result(WAIT_S)
        self.peers: list[Stranger] = []

    def connect(self, name: str) -> Stranger:
        """A bare peer with that client's key."""
        keys = self.ring.prefill(name)
        peer = Stranger(self.server.endpoints["control_0"], ClientSecurity(keys["client_key"], keys["server_keys"]))
        self.peers.append(peer)
        return peer

    def message(self, name: str, **changes: Any) -> Subscribe:
        """What that client's rank 0 opens with."""
        return replace(subscribe(self.server.config), **{"prefill_id": f"{name}-0", "group": name, **changes})

    def session(self, peer: Stranger, name: str) -> str:
        """A session of its own."""
        peer.say(self.message(name))
        answer = first(peer, Subscribed)
        assert isinstance(answer, Subscribed)
        return answer.session

    def alive(self, peer: Stranger, session: str) -> None:
        """Wait until everything that this peer has said was read."""
        peer.say(Heartbeat(session, 1, START))
        first(peer, HeartbeatAck)

    def denied(self) -> dict[str, int]:
        """What was turned away so far."""
        security = self.server.engine.inspect(0).result(WAIT_S)["ranks"][0]["security"]
        assert security["secured"] is True
        found: dict[str, int] = security["denied"]
        return found

    @property
    def data(self) -> str:
        """The data socket's address."""
        return f"tcp://127.0.0.1:{self.server.config.data_port(0)}"

    def close(self) -> None:
        """Stop the server and close every peer."""
        self.server.request_stop()
        for peer in self.peers:
            peer.close()
        assert self.server.join() == 0


def first(peer: Stranger, kind: type[ToPrefill]) -> ToPrefill:
    """The next message of that type."""
    while not isinstance(message := peer.hear(), kind):
        pass
    return message


@pytest.fixture
def border(tmp_path: Path) -> Iterator[Border]:
    """A border that is closed in the end."""
    made = Border(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("changes", "code", "words", "denial"),
    [
        ({"prefill_id": "b-0"}, RefusedCode.NOT_ALLOWED, "'b-0'", Denial.PREFILL),
        ({"prefill_id": "a-0-0"}, RefusedCode.NOT_ALLOWED, "'a-0-0'", Denial.PREFILL),
        ({"group": "b"}, RefusedCode.NOT_ALLOWED, "'b'", Denial.GROUP),
    ],
)
def test_a_client_is_only_itself(
    border: Border, changes: dict[str, object], code: RefusedCode, words: str, denial: Denial
) -> None:
    """Another's prefill id and another's group are refused in words, counted and logged; its own are accepted."""
    peer = border.connect("a")
    with capture_logs() as lines:
        peer.say(border.message("a", **changes))
        refused = first(peer, Refused)
    assert isinstance(refused, Refused)
    assert refused.code is code
    assert words in refused.message
    assert border.denied() == {denial.value: 1}
    assert [(line["client"], line["reason"]) for line in lines if line["event"] == "peer_denied"] == [("a", denial.value)]
    border.session(peer, "a")


def test_a_session_is_worth_nothing_to_others(border: Border) -> None:
    """Whatever another client says in the name of a session gets no answer and changes nothing, and each try is counted."""
    owner, thief = border.connect("a"), border.connect("b")
    session, own = border.session(owner, "a"), border.session(thief, "b")
    border.server.engine.register_room("room", 0, "a", CHUNK_TOKENS, RUN).result(WAIT_S)
    owner.say(StagingReq(session, "room", 0, 0, CHUNK_TOKENS))
    granted = first(owner, StagingRsp)
    assert isinstance(granted, StagingRsp)
    assert granted.status is GrantStatus.GRANTED
    assert granted.grant is not None
    ready = ChunkReady(session, "room", 0, granted.grant.alloc_id, 1, SIZE, None)
    for message in (Heartbeat(session, 9, START), StagingReq(session, "room", 0, 0, CHUNK_TOKENS), ready):
        thief.say(message)
    thief.say(Abort(session, "room", 1, "stolen"))
    thief.say(border.message("b", stopped=session, attempt=2))
    refused = first(thief, Refused)
    assert isinstance(refused, Refused)
    assert refused.code is RefusedCode.NOT_ALLOWED
    border.alive(thief, own)
    border.alive(owner, session)
    assert border.denied() == {Denial.SESSION.value: 5}
    snapshot = border.server.engine.inspect(0).result(WAIT_S)["ranks"][0]
    assert "room" in str(snapshot["rooms"])
    border.server.engine.abort_room("room", 0).result(WAIT_S)


def test_a_grant_is_worth_nothing_on_the_data_socket_either(border: Border) -> None:
    """Pieces and completions for another's grant are dropped before a byte is copied; the owner's then go through."""
    owner, thief = border.connect("a"), border.connect("b")
    session, own = border.session(owner, "a"), border.session(thief, "b")
    border.server.engine.register_room("room", 0, "a", CHUNK_TOKENS, RUN).result(WAIT_S)
    owner.say(StagingReq(session, "room", 0, 0, CHUNK_TOKENS))
    granted = first(owner, StagingRsp)
    assert isinstance(granted, StagingRsp)
    assert granted.grant is not None
    piece = DataPiece(session, "room", 0, granted.grant.alloc_id, 1, 0, SIZE)
    ready = ChunkReady(session, "room", 0, granted.grant.alloc_id, 1, SIZE, None)
    thief.push(border.data, *encode_data(piece), bytes(SIZE))
    thief.push(border.data, *encode(ready))
    while border.denied().get(Denial.SESSION.value) != 2:
        border.alive(thief, own)
    owner.push(border.data, *encode_data(piece), b"\x01" * SIZE)
    owner.push(border.data, *encode(ready))
    assert border.server.engine.wait_room("room", 0).result(WAIT_S).done


def test_a_revoked_key_is_worth_nothing_at_once(border: Border) -> None:
    """Taken off the list, a client that is connected is not heard any more, on either socket; others do not notice."""
    revoked, other = border.connect("a"), border.connect("b")
    session, own = border.session(revoked, "a"), border.session(other, "b")
    border.ring.allow("b")
    border.server.reload()
    while Denial.REVOKED.value not in border.denied():
        revoked.say(Heartbeat(session, 2, START))
        border.alive(other, own)
    before = border.denied()[Denial.REVOKED.value]
    piece = DataPiece(session, "room", 0, 1, 1, 0, 1)
    revoked.push(border.data, *encode_data(piece), b"x")
    border.alive(other, own)
    assert border.denied()[Denial.REVOKED.value] >= before


def test_a_client_holds_no_more_sessions_than_it_may(border: Border) -> None:
    """One key cannot take every session of a rank: the one beyond its limit is refused, and a repeat of the first is not."""
    text = border.ring.allow_list.read_text(encoding="utf-8")
    border.ring.allow_list.write_text(text.replace("[clients.b]", "max_sessions = 1\n[clients.b]"), encoding="utf-8")
    border.server.reload()
    peer = border.connect("a")
    layout = replace(LAYOUT, tp_size=2)
    peer.say(border.message("a", layout=layout))
    first(peer, Subscribed)
    peer.say(border.message("a", layout=replace(layout, tp_rank=1), prefill_id="a-1"))
    refused = first(peer, Refused)
    assert isinstance(refused, Refused)
    assert refused.code is RefusedCode.TOO_MANY_SESSIONS
    peer.say(border.message("a", layout=layout, attempt=2))
    first(peer, Subscribed)


def test_nobody_gets_in_without_a_key(border: Border) -> None:
    """A peer without a key is not heard; the failed handshake is counted, and peers with keys are served meanwhile."""
    plain = Stranger(border.server.endpoints["control_0"])
    border.peers.append(plain)
    plain.say(border.message("a"))
    peer = border.connect("a")
    session = border.session(peer, "a")
    while not border.server.engine.inspect(0).result(WAIT_S)["ranks"][0]["security"]["handshakes_failed"]:
        border.alive(peer, session)


def test_useless_frames_are_rationed(border: Border) -> None:
    """A peer that sends nothing but garbage is not read any more after a while; another one is served all along."""
    noisy, other = border.connect("a"), border.connect("b")
    session = border.session(other, "b")
    for _ in range(int(WASTE_BURST) + 100):
        noisy.send(b"NOISE", b"\x80")
    while Denial.WASTE.value not in border.denied():
        border.alive(other, session)


def test_subscriptions_are_rationed() -> None:
    """Their number per peer is bounded, and other messages of the same peer are heard all the same."""
    guard = Guard(None, logger())
    asking = Arrival([b"SUBSCRIBE", b""], b"route", "")
    heard = [guard.hears(asking, 0.0) for _ in range(int(SUBSCRIBE_BURST) + 5)]
    assert heard == [True] * int(SUBSCRIBE_BURST) + [False] * 5
    assert guard.hears(Arrival([b"HEARTBEAT", b""], b"route", ""), 0.0)
    assert guard.hears(Arrival([b"SUBSCRIBE", b""], b"other", ""), 0.0)
    assert guard.denied == {Denial.SUBSCRIBES.value: 5}


def test_without_keys_garbage_is_rationed_by_connection() -> None:
    """A connection that sends garbage is not read for a moment, others are, and a data socket has no connections to tell."""
    guard = Guard(None, logger())
    noisy = Arrival([b"X"], b"route", "")
    for _ in range(int(WASTE_BURST)):
        assert guard.hears(noisy, 0.0)
        guard.wasted(noisy, 0.0)
    assert not guard.hears(noisy, 0.0)
    assert guard.hears(Arrival([b"X"], b"other", ""), 0.0)
    assert guard.hears(noisy, 1.0)
    data = Arrival((), b"", "")
    guard.wasted(data, 0.0)
    assert guard.hears(data, 0.0)
    assert guard.counts() == {"secured": False, "denied": {Denial.WASTE.value: 1}, "handshakes_failed": {}}


def test_a_failed_handshake_is_named_in_words_and_not_too_often() -> None:
    """The log says what it may be that connected, once for each port and kind in a while; all of them are counted."""
    guard = Guard(None, logger())
    with capture_logs() as lines:
        for _ in range(3):
            guard.handshake_failed("HANDSHAKE_FAILED_PROTOCOL", "tcp://127.0.0.1:7600", 0.0)
        guard.handshake_failed("HANDSHAKE_FAILED_NO_DETAIL", "tcp://127.0.0.1:7600", 0.0)
    assert [line["event"] for line in lines] == ["peer_handshake_failed"] * 2
    assert "no prefill daemon" in lines[0]["reason"]
    assert "hung up" in lines[1]["reason"]
    assert guard.handshakes_failed == {"protocol": 3, "no_detail": 1}


def test_an_answer_to_a_stranger_tells_nothing(border: Border) -> None:
    """A session that nobody has is answered as always, so a name that was guessed wrong and one that ended look alike."""
    peer = border.connect("a")
    peer.say(Heartbeat("0000000000000001-1", 1, START))
    assert isinstance(first(peer, Error), Error)
