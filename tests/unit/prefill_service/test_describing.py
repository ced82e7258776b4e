"""The words for the way to a decode rank."""

from prefill_service.describing import Coming, Unsent, decode_name, frames, seconds, way_there
from protocol.messages import Error, ErrorCode
from tests.unit.prefill_service.bench import Bench


def test_small_words() -> None:
    """Durations are never negative."""
    assert (seconds(0.04), seconds(-1), str(Coming("it ends", 2.0))) == ("0.0 s", "0.0 s", "in 2.0 s it ends")


def test_a_lost_session_whose_write_still_runs() -> None:
    """The next subscription waits for the write, and the words say so."""
    bench = Bench()
    session = bench.connect()
    bench.writing()
    bench.now += 1.0
    bench.hear("d0", Error(session, ErrorCode.UNKNOWN_SESSION, "who?", "HEARTBEAT"))
    peer = bench.handler.state.peers["d0"]
    assert decode_name(peer) == "the decode rank at d0"
    assert "until 1 writes of the lost session have ended" in way_there(bench.handler.state, peer)


def test_nothing_was_heard_yet() -> None:
    """A peer that never answered has no last frame."""
    bench = Bench()
    bench.handler.add_peer("d0", bench.now)
    words = frames(bench.handler.state, bench.handler.state.peers["d0"])
    assert words == "last frame from the decode rank at d0: none; last frame to it: SUBSCRIBE 0.0 s ago"


def test_what_could_not_be_sent_is_no_last_frame() -> None:
    """Without a connection nothing is said to have gone out: neither the subscription nor a frame."""
    bench = Bench()
    bench.handler.add_peer("d0", bench.now)
    bench.run(3.2)
    state, peer = bench.handler.state, bench.handler.state.peers["d0"]
    state.now = bench.now
    unsent = Unsent(bench.now - 3.2, 5, "no connection to", "they hung up")
    held_up = "no connection to d0 since 3.2 s (5 messages could not leave); last failure: they hung up"
    assert frames(state, peer, unsent) == f"last frame from the decode rank at d0: none; {held_up}"
    assert way_there(state, peer, unsent) == f"the decode rank at d0 to be reached: {held_up}"
    assert "(1 message could not leave)" in frames(state, peer, Unsent(bench.now, 1, "no connection to"))
