"""Ends of rooms: nobody is told that nothing runs before nothing runs, and everybody is told in the end."""

import pytest

from prefill_service.outputs import Output, RoomDone, RoomFailed, WriteChunk
from prefill_service.rooms import RoomRefused, UnknownRoomError
from protocol.messages import Abort, AbortAck, DoneStatus, Error, ErrorCode, GrantStatus, StagingReq, WriteFailed
from tests.unit.prefill_service.bench import Bench, granted, of_type, sent


def connected(*peers: str) -> Bench:
    """A bench with a session per peer."""
    bench = Bench()
    for rank, peer in enumerate(peers or ("d0",)):
        bench.connect(peer, rank)
    return bench


def abort_from_decode(bench: Bench, room: str, abort_id: int = 7, peer: str = "d0") -> tuple[Output, ...]:
    """D gives a room up."""
    return bench.hear(peer, Abort(bench.sessions[peer], room, abort_id, "client left"))


# ---- aborts of D's -------------------------------------------------------------------------------------------------------


def test_abort_while_writing_is_acknowledged_after_the_write() -> None:
    """D's pages and ring bytes are in use until the running write has ended: only then the ack, and only then the end."""
    bench = connected()
    write = bench.writing()
    assert abort_from_decode(bench, "r") == ()
    assert not sent(bench.run(3.0), AbortAck)
    out = bench.finish(write)
    assert sent(out, AbortAck) == [AbortAck(bench.sessions["d0"], "r", 7)]
    assert of_type(out, RoomFailed) == [RoomFailed("r", "aborted_by_decode", "d0: client left")]
    assert not sent(out, Abort)


def test_abort_without_a_running_write_is_acknowledged_at_once() -> None:
    """Requested and waiting chunks are dropped, and nothing of the room starts afterwards."""
    bench = connected()
    bench.whole_room("r")
    bench.grant("d0", "r", 0, granted(1, round=1))
    out = abort_from_decode(bench, "r")
    assert sent(out, AbortAck)
    assert of_type(out, RoomFailed)
    assert not of_type(bench.watermark("d0", 9, 0), WriteChunk)


def test_repeated_abort_is_answered_each_time() -> None:
    """The ack may be lost: an abort of a room that is over, failed or done or unknown, is acknowledged whenever it comes."""
    bench = connected()
    bench.written("done")
    bench.judge("d0", "done", 0, 1, DoneStatus.SCATTERED)
    bench.whole_room("failed")
    abort_from_decode(bench, "failed")
    for room in ("done", "failed", "never heard of"):
        for abort_id in (7, 7, 8):
            out = abort_from_decode(bench, room, abort_id)
            assert sent(out, AbortAck) == [AbortAck(bench.sessions["d0"], room, abort_id)]
    assert bench.handler.room_result("done") == RoomDone("done")


def test_each_abort_that_waits_is_answered() -> None:
    """Repeats that come while the write runs are answered once each by number when it has ended, none before."""
    bench = connected()
    write = bench.writing()
    for abort_id in (7, 7, 8):
        assert abort_from_decode(bench, "r", abort_id) == ()
    assert [ack.abort_id for ack in sent(bench.finish(write), AbortAck)] == [7, 8]


def test_only_the_own_share_is_counted_down() -> None:
    """Of two running writes one ends, and chunks behind them are dropped: there is no ack until the second has ended too."""
    bench = connected()
    bench.submit("r", 30)
    writes = [of_type(bench.grant("d0", "r", chunk, granted(chunk + 1)), WriteChunk)[0] for chunk in range(2)]
    abort_from_decode(bench, "r")
    assert bench.grant("d0", "r", 2, granted(3)) == ()
    assert bench.fail(writes[0]) == ()
    assert abort_from_decode(bench, "r") == ()
    out = bench.finish(writes[1])
    assert sent(out, AbortAck)
    assert of_type(out, RoomFailed)


def test_address_of_the_ack_survives_the_engine_giving_up() -> None:
    """The engine aborts while a write runs, then D does: the ack still goes out when the write has ended."""
    bench = connected()
    write = bench.writing()
    bench.handler.abort_room("r", bench.now)
    assert abort_from_decode(bench, "r") == ()
    out = bench.finish(write)
    assert sent(out, AbortAck)
    assert len(of_type(out, RoomFailed)) == 1


def test_ack_is_not_held_up_by_another_decode_rank() -> None:
    """The promise is about writes to the one that asks: a write to another rank goes on, and only the engine waits for it."""
    bench = connected("d0", "d1")
    bench.whole_room("r", decode=("d0", "d1"))
    (write,) = of_type(bench.grant("d1", "r", 0, granted(1)), WriteChunk)
    out = abort_from_decode(bench, "r")
    assert sent(out, AbortAck, "d0")
    assert not of_type(out, RoomFailed)
    out = bench.finish(write)
    assert sent(out, Abort, "d1")
    assert of_type(out, RoomFailed)


def test_abort_of_a_lost_session_is_acknowledged_when_its_writes_have_ended() -> None:
    """D may ask about a session it has fenced: the answer is proof for that one, and the room goes on in the next."""
    bench = connected()
    old = bench.sessions["d0"]
    write = bench.writing()
    bench.now += 1.0
    bench.hear("d0", Error(old, ErrorCode.UNKNOWN_SESSION, "who?", "HEARTBEAT"))
    assert bench.hear("d0", Abort(old, "r", 7, "fenced")) == ()
    out = bench.finish(write)
    assert sent(out, AbortAck) == [AbortAck(old, "r", 7)]
    assert not of_type(out, RoomFailed)
    assert sent(bench.accept("d0", out), StagingReq)
    assert sent(bench.hear("d0", Abort(old, "r", 8, "fenced")), AbortAck)


def test_abort_in_a_session_of_another_life_is_ignored() -> None:
    """What another life of this rank wrote is not ours to promise."""
    bench = connected()
    assert bench.hear("d0", Abort("another-life", "r", 7, "?")) == ()
    assert bench.counters["aborts_of_unknown_session"] == 1


def test_room_that_was_aborted_before_it_came_is_refused() -> None:
    """D aborts a room that the engine submits a moment later: the submission is refused with D's reason, for that session."""
    bench = connected()
    abort_from_decode(bench, "r")
    with pytest.raises(RoomRefused, match="client left") as refused:
        bench.submit("r", 3)
    assert refused.value.code == "aborted_by_decode"
    bench.run(301.0)
    bench.submit("r", 3)


def test_memory_of_unknown_aborted_rooms_is_bounded() -> None:
    """A stream of aborts for rooms nobody knows leaves the latest of them, and nothing more."""
    bench = Bench(max_aborted_rooms=3)
    bench.connect()
    for number in range(10):
        abort_from_decode(bench, f"r{number}")
    session = bench.handler.state.peers["d0"].session
    assert session is not None
    assert list(session.aborted_rooms) == ["r7", "r8", "r9"]


# ---- aborts of ours ------------------------------------------------------------------------------------------------------


def test_engine_abort_stops_first_and_then_tells() -> None:
    """The room fails for the engine and D hears ABORT when the running write has ended, not before; what waits never starts."""
    bench = connected()
    write = bench.writing()
    assert bench.handler.abort_room("r", bench.now, "user gone") == ()
    assert bench.handler.room_result("r") is None
    out = bench.finish(write)
    (abort,) = sent(out, Abort)
    assert (abort.session, abort.room, abort.reason) == (bench.sessions["d0"], "r", "aborted: user gone")
    assert of_type(out, RoomFailed) == [RoomFailed("r", "aborted", "user gone")]
    assert bench.handler.room_result("r") == RoomFailed("r", "aborted", "user gone")


def test_abort_is_repeated_until_its_own_ack() -> None:
    """Any other ack, or one of an unknown session, does not end it; its own does."""
    bench = connected()
    bench.whole_room("r")
    (abort,) = sent(bench.handler.abort_room("r", bench.now), Abort)
    session = bench.sessions["d0"]
    for ack in (
        AbortAck(session, "r", abort.abort_id + 1),
        AbortAck("other", "r", abort.abort_id),
        AbortAck(session, "other", abort.abort_id),
    ):
        bench.hear("d0", ack)
    assert set(sent(bench.run(3.0), Abort)) == {abort}
    bench.hear("d0", AbortAck(session, "r", abort.abort_id))
    assert not sent(bench.run(10.0), Abort)


def test_engine_need_not_wait_for_the_ack() -> None:
    """The source pages are free when nothing reads them, whether D has heard of it or not."""
    bench = connected()
    bench.whole_room("r")
    assert of_type(bench.handler.abort_room("r", bench.now), RoomFailed)
    assert bench.is_idle()


def test_failure_at_one_rank_is_told_to_the_others_at_once() -> None:
    """A chunk is refused by one decode rank: the other one hears ABORT in the same moment."""
    bench = connected("d0", "d1")
    bench.whole_room("r", decode=("d0", "d1"))
    out = bench.respond("d0", "r", 0, GrantStatus.OVERSIZED, message="too large")
    assert sent(out, Abort, "d1")
    assert of_type(out, RoomFailed) == [RoomFailed("r", "oversized", "d0: too large")]


def test_rank_that_was_never_asked_is_told_too() -> None:
    """Its engine may have registered the room, and nobody else would tell it before its last deadline."""
    bench = connected()
    bench.submit("r", 3)
    out = bench.handler.abort_room("r", bench.now)
    assert of_type(out, RoomFailed) == [RoomFailed("r", "aborted", "the engine gave it up")]
    assert sent(out, Abort)


def test_abort_goes_on_in_the_next_session_of_the_same_decode_life() -> None:
    """A lost session does not save D from hearing that the room is over."""
    bench = connected()
    bench.whole_room("r")
    (abort,) = sent(bench.handler.abort_room("r", bench.now), Abort)
    bench.now += 1.0
    lost = bench.hear("d0", Error(bench.sessions["d0"], ErrorCode.UNKNOWN_SESSION, "who?", "ABORT"))
    out = bench.accept("d0", lost)
    assert sent(out, Abort) == [Abort(bench.sessions["d0"], "r", abort.abort_id, abort.reason)]


def test_abort_is_dropped_with_the_decode_life() -> None:
    """A new decode process has never heard of the room."""
    bench = connected()
    bench.whole_room("r")
    bench.handler.abort_room("r", bench.now)
    bench.now += 1.0
    lost = bench.hear("d0", Error(bench.sessions["d0"], ErrorCode.UNKNOWN_SESSION, "who?", "ABORT"))
    out = bench.accept("d0", lost, decode_incarnation=6, epoch=78)
    assert not sent(out + bench.run(5.0), Abort)


def test_abort_is_given_up_with_the_tombstone() -> None:
    """A D that never acks is told for as long as the room is remembered, and not for ever."""
    bench = Bench(room_tombstone_s=20.0)
    bench.connect()
    bench.whole_room("r")
    bench.handler.abort_room("r", bench.now)
    assert sent(bench.run(15.0), Abort)
    bench.run(10.0)
    assert not sent(bench.run(10.0), Abort)
    assert bench.counters["aborts_given_up"] == 1


def test_abort_of_rooms_that_are_over_or_unknown() -> None:
    """The engine may abort a room that is over, which stays as it is; for an unknown one it is told so."""
    bench = connected()
    bench.written()
    bench.judge("d0", "r", 0, 1, DoneStatus.SCATTERED)
    assert bench.handler.abort_room("r", bench.now) == ()
    assert bench.handler.room_result("r") == RoomDone("r")
    with pytest.raises(RoomRefused) as refused:
        bench.handler.abort_room("other", bench.now)
    assert refused.value.code == "unknown_room"
    with pytest.raises(UnknownRoomError):
        bench.handler.room_result("other")


# ---- deadlines -----------------------------------------------------------------------------------------------------------


def test_room_without_progress_fails_at_its_deadline() -> None:
    """A room that D never answers for fails after room_deadline_s, and says what it waited for."""
    bench = Bench(room_deadline_s=30.0)
    bench.connect()
    bench.whole_room("r")
    assert not of_type(bench.run(29.9), RoomFailed)
    (failed,) = of_type(bench.run(0.2), RoomFailed)
    assert failed == RoomFailed("r", "deadline", "chunk 0 for d0 (current) is requested for 30.0 s")


def test_progress_moves_the_deadline_up_to_the_cap() -> None:
    """Each progress gives the room its time anew, but not beyond the cap."""
    bench = Bench(room_deadline_s=30.0)
    bench.connect()
    started, tokens = bench.now, 0
    failed: list[RoomFailed] = []
    while not failed:
        bench.submit("r", 10, start=tokens)
        tokens += 10
        failed = of_type(bench.run(20.0), RoomFailed)
    assert failed[0].code == "deadline"
    assert bench.now == started + 120.0


def test_room_that_the_engine_forgets_fails_too() -> None:
    """Nothing comes after the first tokens and no finish: the room does not stay for ever."""
    bench = Bench(room_deadline_s=30.0)
    bench.connect()
    bench.submit("r", 3)
    (failed,) = of_type(bench.run(31.0), RoomFailed)
    assert failed.message == "no more tokens came from the engine; 3 tokens were submitted"


def test_deadline_does_not_free_pages_that_are_read() -> None:
    """A write that hangs over the deadline keeps the room from being reported until it ends."""
    bench = Bench(room_deadline_s=30.0)
    bench.connect()
    write = bench.writing()
    assert not of_type(bench.run(100.0), RoomFailed)
    assert [failed.code for failed in of_type(bench.finish(write), RoomFailed)] == ["deadline"]


def test_no_promise_is_made_after_a_failed_one_sided_write() -> None:
    """Where an ABORT_ACK or an ABORT would be proof that nothing lands any more, WRITE_FAILED names the grant instead."""
    bench = Bench(planes=("nixl",))
    session = bench.connect()
    write = bench.writing()
    bench.fail(write, "timed out")
    failed = WriteFailed(session, "r", 0, 1, 1, "timed out")
    out = bench.hear("d0", Abort(session, "r", 7, "enough"))
    assert sent(out, AbortAck) == []
    assert failed in sent(out, WriteFailed)
    again = bench.hear("d0", Abort(session, "r", 7, "enough"))
    assert (sent(again, AbortAck), sent(again, WriteFailed)) == ([], [failed])


def test_an_abort_waits_for_a_session_in_which_nothing_failed() -> None:
    """D hears of the grant as long as the session lasts, and of the abort as soon as there is another session."""
    bench = Bench(planes=("nixl",))
    session = bench.connect()
    write = bench.writing()
    bench.handler.abort_room("r", bench.now, "enough")
    out = bench.fail(write) + bench.run(3.0)
    assert sent(out, Abort) == []
    assert {message.alloc_id for message in sent(out, WriteFailed)} == {1}
    bench.now += 1.0
    out = bench.hear("d0", Error(session, ErrorCode.UNKNOWN_SESSION, "who?", "HEARTBEAT"))
    out = bench.accept("d0", out)
    assert [message.room for message in sent(out, Abort)] == ["r"]
