"""The machine as a whole: its verbs, its clock, its beginning and its end."""

import pytest

from prefill_service.outputs import Disconnect, RoomDone, RoomFailed, WriteChunk
from prefill_service.rooms import RoomRefused
from protocol.errors import LocalProtocolError
from protocol.messages import Abort, DoneStatus, HeartbeatAck, StagingReq, Subscribe, Unsubscribe
from tests.unit.prefill_service.bench import PAGES, Bench, granted, of_type, sent


def test_silent_machine_has_no_deadline() -> None:
    """Without peers and rooms there is nothing to wake up for."""
    bench = Bench()
    assert bench.handler.next_deadline() is None
    assert bench.handler.tick(bench.now) == ()


def test_nothing_is_due_before_the_deadline() -> None:
    """A tick before the next deadline does nothing, and one at it does something or moves it."""
    bench = Bench()
    bench.connect()
    bench.whole_room("r")
    for _ in range(50):
        at = bench.handler.next_deadline()
        assert at is not None
        assert at > bench.now
        assert bench.handler.tick((at + bench.now) / 2) == ()
        bench.now = at
        bench.handler.tick(at)


def test_time_cannot_fall() -> None:
    """A clock that runs backwards is the caller's bug."""
    bench = Bench()
    bench.handler.tick(bench.now)
    with pytest.raises(AssertionError, match="time went back"):
        bench.handler.tick(bench.now - 1.0)


def test_messages_of_unknown_peers_are_counted() -> None:
    """A peer that was removed may still be heard; nothing comes of it."""
    bench = Bench()
    assert bench.hear("d9", HeartbeatAck("s", 1)) == ()
    assert bench.counters["messages_of_unknown_peer"] == 1


def test_write_is_reported_once() -> None:
    """A second report of the same write is the shell's bug and is not swallowed."""
    bench = Bench()
    bench.connect()
    write = bench.writing()
    bench.finish(write)
    with pytest.raises(LocalProtocolError):
        bench.finish(write)
    with pytest.raises(LocalProtocolError):
        bench.fail(write)


def test_one_peer_s_silence_does_not_touch_another() -> None:
    """Two decode ranks: one never answers its subscription, rooms for the other go through."""
    bench = Bench()
    bench.handler.add_peer("d1", bench.now)
    bench.connect("d0")
    bench.run(5.0)
    bench.written()
    assert bench.judge("d0", "r", 0, 1, DoneStatus.SCATTERED) == (RoomDone("r"),)


def test_late_due_things_of_a_lost_session_do_nothing() -> None:
    """After a long sleep the lease and a hundred repeats are due at once: the session is lost and nothing is sent in it."""
    bench = Bench(page_size=100)
    bench.connect()
    bench.submit("r", 1000)
    bench.now += 200.0
    out = bench.handler.tick(bench.now)
    assert not sent(out, StagingReq)
    assert len(sent(out, Subscribe)) == 1


def test_draining_machine_finishes_what_it_has() -> None:
    """No new room is taken, the live one goes on to its end, and then the machine is idle."""
    bench = Bench()
    bench.connect()
    bench.submit("r", 10)
    bench.handler.drain(bench.now)
    with pytest.raises(RoomRefused) as refused:
        bench.submit("other", 10)
    assert refused.value.code == "draining"
    bench.submit("r", 5, start=10)
    bench.handler.finish_room("r", bench.now)
    assert not bench.is_idle()
    for chunk, size in ((0, 60), (1, 30)):
        (write,) = of_type(bench.grant("d0", "r", chunk, granted(chunk + 1, num_bytes=size)), WriteChunk)
        bench.finish(write)
        bench.judge("d0", "r", chunk, chunk + 1, DoneStatus.SCATTERED)
    assert bench.is_idle()
    assert bench.handler.room_result("r") == RoomDone("r")


def test_stop_leaves_each_peer_as_its_last_write_ends() -> None:
    """The idle peer is left at once, the other when its write has ended, each with its unsubscription."""
    bench = Bench()
    bench.connect("d0", 0)
    bench.connect("d1", 1)
    write = bench.writing()
    out = bench.handler.stop(bench.now)
    assert sent(out, Unsubscribe, "d1")
    assert of_type(out, Disconnect) == [Disconnect("d1")]
    assert not bench.is_stopped()
    out = bench.finish(write)
    assert of_type(out, RoomFailed) == [RoomFailed("r", "stopped", "this prefill rank was stopped")]
    assert sent(out, Abort, "d0")
    assert sent(out, Unsubscribe, "d0")
    assert of_type(out, Disconnect) == [Disconnect("d0")]
    assert bench.is_stopped()
    assert bench.handler.next_deadline() is None


def test_stopped_machine_takes_nothing_new() -> None:
    """After stop neither rooms nor peers are taken."""
    bench = Bench()
    bench.handler.stop(bench.now)
    with pytest.raises(RoomRefused, match="was stopped"):
        bench.submit("r", 5)
    with pytest.raises(RoomRefused, match="was stopped"):
        bench.handler.add_peer("d0", bench.now)


def test_too_many_peers_are_refused_with_the_limit() -> None:
    """Peers are bounded; one that is known is no new one."""
    bench = Bench(max_peers=1)
    bench.handler.add_peer("d0", bench.now)
    with pytest.raises(RoomRefused) as refused:
        bench.handler.add_peer("d1", bench.now)
    assert (refused.value.code, refused.value.limit) == ("busy", 1)
    assert bench.handler.add_peer("d0", bench.now) == ()


def test_memory_returns_to_nothing() -> None:
    """After a thousand rooms, done and aborted, and their tombstones' time, no trace of them is left but the counters."""
    bench = Bench(room_tombstone_s=1.0)
    bench.connect()
    for number in range(1000):
        room = f"r{number}"
        bench.handler.submit_chunk(room, ("d0",), 0, 10, PAGES, bench.now)
        if number % 2:
            bench.handler.abort_room(room, bench.now)
        else:
            bench.handler.finish_room(room, bench.now)
            (write,) = of_type(bench.grant("d0", room, 0, granted(number + 1)), WriteChunk)
            bench.finish(write)
            bench.judge("d0", room, 0, number + 1, DoneStatus.SCATTERED)
    bench.run(10.0)
    state = bench.handler.state
    assert (len(state.rooms), state.rooms.remembered, state.writes.running) == (0, 0, {})
    assert state.peers["d0"].aborts == {}
    assert len(state.timers) == 2
