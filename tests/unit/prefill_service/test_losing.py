"""A lost session ends as a whole, its writes end for themselves, and the next one begins on proof that they have."""

from prefill_service.outputs import ClosePlane, Connect, Disconnect, OpenPlane, Output, RoomFailed, WriteChunk
from protocol.messages import (
    Abort,
    ChunkReady,
    Error,
    ErrorCode,
    Heartbeat,
    StagingReq,
    Subscribe,
    Unsubscribe,
    WriteFailed,
)
from tests.unit.prefill_service.bench import Bench, granted, of_type, sent


def lose(bench: Bench, peer: str = "d0") -> tuple[Output, ...]:
    """D says that it does not know the session."""
    bench.now += 1.0
    return bench.hear(peer, Error(bench.sessions[peer], ErrorCode.UNKNOWN_SESSION, "who?", "HEARTBEAT"))


def test_next_subscription_waits_for_running_writes_and_names_the_session() -> None:
    """While a write of the lost session runs nothing is asked; its end is the proof that goes out with the next attempt."""
    bench = Bench()
    session = bench.connect()
    write = bench.writing()
    assert lose(bench) == ()
    assert not sent(bench.run(5.0), Subscribe)
    out = bench.finish(write)
    assert [again.stopped for again in sent(out, Subscribe)] == [session]
    assert of_type(out, ClosePlane) == [ClosePlane("d0", session)]
    assert not sent(out, ChunkReady)


def test_late_end_of_an_old_write_never_touches_the_new_session() -> None:
    """A chunk that is written anew is not taken for written when the write of the lost session ends."""
    bench = Bench(stop_wait_s=3.0)
    old = bench.connect()
    late = bench.writing()
    lose(bench)
    out = bench.run(3.0)
    assert [again.stopped for again in sent(out, Subscribe)] == [None]
    bench.accept("d0", out)
    (write,) = of_type(bench.grant("d0", "r", 0, granted(2, 30)), WriteChunk)
    out = bench.finish(late)
    assert not sent(out, ChunkReady)
    assert sent(out, Unsubscribe) == [Unsubscribe(old, "its last write has ended")]
    assert of_type(out, ClosePlane) == [ClosePlane("d0", old)]
    assert bench.state_of() == "writing"
    assert [ready.alloc_id for ready in sent(bench.finish(write), ChunkReady)] == [2]


def test_grant_of_a_write_that_did_not_end_is_never_written_again() -> None:
    """If D grants the same place in a new session of that epoch, it hears that an old write may still land there."""
    bench = Bench(stop_wait_s=3.0)
    bench.connect()
    bench.writing(alloc_id=1)
    lose(bench)
    bench.accept("d0", bench.run(3.0))
    out = bench.grant("d0", "r", 0, granted(1))
    assert not of_type(out, WriteChunk)
    assert [(failed.session, failed.alloc_id) for failed in sent(out, WriteFailed)] == [(bench.sessions["d0"], 1)]
    assert of_type(bench.grant("d0", "r", 0, granted(2, 30)), WriteChunk)


def test_abandoned_write_takes_no_place_among_the_bounded_ones() -> None:
    """A write that never ends does not use up the writes that may run."""
    bench = Bench(stop_wait_s=3.0, max_writes_in_flight=1)
    bench.connect()
    bench.writing()
    lose(bench)
    bench.accept("d0", bench.run(3.0))
    assert of_type(bench.grant("d0", "r", 0, granted(2, 30)), WriteChunk)


def test_lease_lapses_from_the_sending_of_the_last_answered_message() -> None:
    """Without an answered heartbeat the session is over ten seconds after its subscription was sent, not after its answer."""
    bench = Bench()
    bench.answers_heartbeats = False
    asked = bench.handler.add_peer("d0", bench.now)
    sent_at = bench.now
    bench.now += 0.1
    bench.accept("d0", asked)
    assert not sent(bench.run(sent_at + 10.0 - bench.now - 0.001), Subscribe)
    assert sent(bench.run(0.002), Subscribe)
    assert bench.counters["leases_lapsed"] == 1


def test_no_write_starts_after_the_lease_even_before_a_tick() -> None:
    """A grant that comes after a pause of this process is not written in the session that lapsed meanwhile."""
    bench = Bench()
    session = bench.connect()
    bench.whole_room("r")
    bench.now += 60.0
    out = bench.grant("d0", "r", 0, granted(1))
    assert not of_type(out, WriteChunk)
    assert [again.stopped for again in sent(out, Subscribe)] == [session]


def test_write_that_ends_after_the_lease_is_not_announced() -> None:
    """The chunk of a lapsed session is asked for anew instead of being said to be ready in it."""
    bench = Bench()
    session = bench.connect()
    write = bench.writing()
    bench.now += 60.0
    out = bench.finish(write)
    assert not sent(out, ChunkReady)
    assert [again.stopped for again in sent(out, Subscribe)] == [session]
    assert sent(bench.accept("d0", out), StagingReq)


def test_watermark_of_a_former_life_opens_nothing() -> None:
    """A new session begins at (0, 0): round 57 of the decode process that died says nothing about its successor's ring."""
    bench = Bench()
    old = bench.connect()
    bench.watermark("d0", 57, 0)
    bench.whole_room("r")
    bench.accept("d0", lose(bench), decode_incarnation=6, epoch=78)
    out = bench.grant("d0", "r", 0, granted(1, round=1))
    assert not of_type(out, WriteChunk)
    assert bench.watermark("d0", 57, 0, session=old) == ()
    assert bench.counters["stale_sessions"] == 1
    assert of_type(bench.watermark("d0", 1, 0), WriteChunk)


def test_session_lost_while_its_plane_opens() -> None:
    """A plane that opens only after its session was lost is closed again, and the next session is not disturbed."""
    bench = Bench()
    asked = sent(bench.handler.add_peer("d0", bench.now), Subscribe)
    answer = bench.answer(asked[0])
    bench.hear("d0", answer)
    bench.now += 1.0
    out = bench.hear("d0", Error(answer.session, ErrorCode.UNKNOWN_SESSION, "who?", "HEARTBEAT"))
    assert not of_type(out, ClosePlane)
    bench.accept("d0", out)
    late = bench.handler.plane_opened("d0", answer.session, bench.now)
    assert of_type(late, ClosePlane) == [ClosePlane("d0", answer.session)]
    assert sent(bench.whole_room("r"), StagingReq)


def test_late_failure_of_a_lost_plane_changes_no_offer() -> None:
    """That a lost session's plane did not open says nothing about the planes of the next one."""
    bench = Bench()
    asked = sent(bench.handler.add_peer("d0", bench.now), Subscribe)
    answer = bench.answer(asked[0])
    bench.hear("d0", answer)
    bench.now += 1.0
    bench.accept("d0", bench.hear("d0", Error(answer.session, ErrorCode.UNKNOWN_SESSION, "who?", "HEARTBEAT")))
    assert not of_type(bench.handler.plane_failed("d0", answer.session, "late", bench.now), ClosePlane)
    assert bench.handler.state.peers["d0"].failed_planes == {}


def test_loss_right_after_a_subscription_is_paced() -> None:
    """A decode rank that forgets every session at once is asked five times a second, not as fast as it answers."""
    bench = Bench()
    bench.connect()
    out = bench.hear("d0", Error(bench.sessions["d0"], ErrorCode.UNKNOWN_SESSION, "who?", "HEARTBEAT"))
    assert not sent(out, Subscribe)
    assert len(sent(bench.run(0.2), Subscribe)) == 1


def test_removed_peer_is_left_after_its_last_write() -> None:
    """Its rooms fail at once; abort, unsubscription and disconnection wait for the write, and heartbeats go on meanwhile."""
    bench = Bench()
    session = bench.connect()
    write = bench.writing()
    assert bench.handler.remove_peer("d0", bench.now) == ()
    waiting = bench.run(3.0)
    assert sent(waiting, Heartbeat)
    assert not of_type(waiting, Disconnect)
    out = bench.finish(write)
    order = [type(message).__name__ for message in sent(out, object)] + [type(output).__name__ for output in out[-2:]]
    assert order == ["Abort", "Unsubscribe", "ClosePlane", "Disconnect"]
    assert [failed.code for failed in of_type(out, RoomFailed)] == ["peer_removed"]
    assert [message.session for message in sent(out, Unsubscribe)] == [session]
    assert [message.session for message in sent(out, Abort)] == [session]
    assert bench.run(100.0) == ()


def test_removed_peer_whose_lease_lapses_is_left_too() -> None:
    """A peer that has gone silent is left when the last write ends, with the same proof."""
    bench = Bench()
    bench.answers_heartbeats = False
    session = bench.connect()
    write = bench.writing()
    bench.handler.remove_peer("d0", bench.now)
    assert not of_type(bench.run(60.0), Disconnect)
    out = bench.finish(write)
    assert [message.session for message in sent(out, Unsubscribe)] == [session]
    assert of_type(out, Disconnect) == [Disconnect("d0")]
    assert not sent(out, Subscribe)


def test_peer_that_is_added_while_it_leaves_joins_again() -> None:
    """The old way is closed first, then a new one is opened."""
    bench = Bench()
    bench.connect()
    write = bench.writing()
    bench.handler.remove_peer("d0", bench.now)
    assert bench.handler.add_peer("d0", bench.now) == ()
    out = bench.finish(write)
    assert out.index(Disconnect("d0")) < out.index(Connect("d0"))
    assert sent(out, Subscribe)
    assert of_type(bench.accept("d0", out), OpenPlane)


def test_removing_an_unknown_peer_changes_nothing() -> None:
    """There is nothing to leave."""
    bench = Bench()
    assert bench.handler.remove_peer("d0", bench.now) == ()


def one_sided(**changes: float) -> tuple[Bench, str, WriteChunk]:
    """A bench whose only plane is one-sided, with a write that runs."""
    bench = Bench(planes=("nixl",), **changes)
    session = bench.connect()
    return bench, session, bench.writing()


def test_a_session_with_a_failed_one_sided_write_is_lost_and_never_stopped() -> None:
    """Its bytes may still land, so the next attempt makes D end that session without giving it proof."""
    bench, session, write = one_sided()
    lose(bench)
    out = bench.fail(write)
    assert [(again.stopped, again.lost) for again in sent(out, Subscribe)] == [(None, session)]


def test_a_returned_session_with_a_failed_write_is_refused_as_lost() -> None:
    """D may not have noticed anything: P does not take the session back, and says why not, until it is given another."""
    bench, session, write = one_sided()
    lose(bench)
    request = sent(bench.fail(write), Subscribe)[-1]
    bench.hear("d0", bench.answer(request, session=session))
    out = bench.run(3.0)
    assert {(again.stopped, again.lost) for again in sent(out, Subscribe)} == {(None, session)}
    bench.accept("d0", out)
    assert bench.sessions["d0"] != session


def test_a_write_that_is_not_waited_for_makes_its_session_lost() -> None:
    """After ``stop_wait_s`` D is told that the session is over, without the proof that only the write's end would be."""
    bench, session, write = one_sided(stop_wait_s=3.0)
    lose(bench)
    request = sent(bench.run(3.0), Subscribe)[-1]
    assert (request.stopped, request.lost) == (None, session)
    assert sent(bench.finish(write), Subscribe) == []
    assert {again.stopped for again in sent(bench.run(3.0), Subscribe)} == {session}


def test_leaving_after_a_failed_one_sided_write_says_nothing() -> None:
    """UNSUBSCRIBE would be proof; without it D waits for its own timers."""
    bench, _, write = one_sided()
    bench.handler.stop(bench.now)
    out = bench.fail(write)
    assert sent(out, Unsubscribe) == []
    assert bench.is_stopped()
