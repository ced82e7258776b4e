"""The table of running writes keeps each bound to the session it began in."""

import pytest

from prefill_service.chunks import Chunk
from prefill_service.rooms import Room, Target
from prefill_service.sessions import Session
from prefill_service.shares import WriterShare
from prefill_service.writes import WriteQueue
from protocol.errors import LocalProtocolError
from protocol.messages import Subscribe
from protocol.timers import Backoff
from tests.unit.prefill_service.bench import PAGES, Bench, granted, sent


def session_and_room() -> tuple[Session, Room]:
    """A session with d0 and a room that goes there."""
    bench = Bench()
    (subscribe,) = sent(bench.handler.add_peer("d0", bench.now), Subscribe)
    terms = bench.answer(subscribe)
    return Session("d0", terms, WriterShare(0, 6, 6), 10.0, Backoff(0.05, 1.0)), Room(
        "r", {"d0": Target("d0")}, PAGES, 0.0, 0.0
    )


def chunk_with_grant(index: int = 0) -> Chunk:
    """A chunk that holds a grant."""
    chunk = Chunk("r", "d0", index, 0, 10, Backoff(0.2, 2.0), since=0.0)
    chunk.grant = granted(index + 1)
    return chunk


def test_first_ready_is_first_out() -> None:
    """The queue keeps the order of readiness, holds a chunk once, and gives one up when told."""
    queue = WriteQueue()
    one, two, three = (chunk_with_grant(index) for index in range(3))
    for chunk in (one, two, three, one):
        queue.add(chunk)
    queue.discard(two)
    queue.discard(two)
    assert two not in queue
    assert [queue.next("d0"), queue.next("d0")] == [one, three]
    assert len(queue) == 0


def test_full_decode_rank_holds_up_no_other() -> None:
    """The bound counts each decode rank's writes alone, so one that takes no bytes leaves the others their places."""
    queue, (session, room) = WriteQueue(), session_and_room()
    waiting = chunk_with_grant(1)
    other = chunk_with_grant(2)
    other.peer = "d1"
    queue.start(chunk_with_grant(0), room, session)
    queue.add(waiting)
    queue.add(other)
    assert list(queue.peers(limit=1)) == ["d1"]
    assert queue.next("d1") is other
    assert list(queue.peers(limit=1)) == []
    assert list(queue.peers(limit=2)) == ["d0"]


def test_write_is_known_to_session_and_room_while_it_runs() -> None:
    """Start and end are noted in all three places, with an id that no other write has."""
    queue, (session, room), chunk = WriteQueue(), session_and_room(), chunk_with_grant()
    write = queue.start(chunk, room, session)
    other = queue.start(chunk_with_grant(1), room, session)
    assert chunk.write_id == write.id != other.id
    assert session.running == {write.id, other.id}
    assert room.targets["d0"].running == {write.id: session.id, other.id: session.id}
    assert queue.end(write.id) is write
    assert (session.running, queue.in_flight) == ({other.id}, {"d0": 1})
    assert not room.is_quiet


def test_abandoned_write_is_counted_once() -> None:
    """Neither being abandoned twice nor its late end frees a place twice."""
    queue, (session, room) = WriteQueue(), session_and_room()
    write = queue.start(chunk_with_grant(), room, session)
    queue.abandon(write)
    queue.abandon(write)
    assert queue.in_flight == {}
    queue.end(write.id)
    assert queue.in_flight == {}


def test_end_of_a_write_that_does_not_run_is_our_bug() -> None:
    """A write is reported once."""
    with pytest.raises(LocalProtocolError, match="write 5"):
        WriteQueue().end(5)
