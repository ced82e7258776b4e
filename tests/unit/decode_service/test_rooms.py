"""Rooms: the grid, the record of what is scattered, the clock that can stand still, and tombstones."""

import pytest

from decode_service.rooms import Room, RoomClock, RoomEnd, RoomRefused, RoomTable
from protocol.layout import PageRun


def make_room(room_id: str = "r", tokens: int = 10) -> Room:
    """A room of three chunks: four, four and two tokens."""
    return Room(room_id, "g", tokens, 4, PageRun((0,)), 10.0, 0.0)


def test_tokens_of_each_chunk() -> None:
    """Chunks cover the room's tokens without gap or overlap; the last one is what remains."""
    assert [make_room().tokens_of(chunk) for chunk in range(3)] == [(0, 4), (4, 4), (8, 2)]
    assert make_room(tokens=8).tokens_of(1) == (4, 4)
    assert len(make_room(tokens=1).scattered) == 1


@pytest.mark.parametrize("chunk", [-1, -3, 3, 10**9])
def test_no_other_chunk_exists(chunk: int) -> None:
    """Any other index, negative ones included, is an error and reads nothing."""
    with pytest.raises(IndexError):
        make_room().tokens_of(chunk)


def test_chunk_is_marked_once() -> None:
    """Marking counts down, and a second time is a bug of ours."""
    room = make_room()
    room.mark_scattered(1)
    assert (room.remaining, list(room.scattered)) == (2, [0, 1, 0])
    with pytest.raises(AssertionError):
        room.mark_scattered(1)


def test_clock_counts_while_it_runs() -> None:
    """What has run stays counted; setting the same state again changes nothing."""
    clock = RoomClock()
    assert clock.read(5.0) == 0.0
    clock.run(running=True, now=5.0)
    clock.run(running=True, now=6.0)
    assert clock.read(7.0) == 2.0
    clock.run(running=False, now=8.0)
    assert clock.read(100.0) == 3.0
    clock.run(running=True, now=100.0)
    assert clock.read(101.0) == 4.0


@pytest.mark.parametrize(
    ("started", "granted", "ready", "runs"),
    [(False, 0, 0, False), (True, 0, 0, True), (True, 2, 0, False), (True, 2, 1, True)],
)
def test_clock_stands_only_in_a_queue(started: bool, granted: int, ready: int, runs: bool) -> None:
    """It runs from the first request, unless the room has grants and none of them may be written."""
    room = make_room()
    room.started, room.granted, room.granted_ready = started, granted, ready
    room.set_clock(3.0)
    assert (room.clock.running_since is not None) == runs


class TestTable:
    """Live rooms and what is remembered of those that are over."""

    def test_id_is_used_once_at_a_time(self) -> None:
        """A live id and a remembered one are refused with different codes; a forgotten one is free."""
        table = RoomTable(10, 10, tombstone_s=5.0)
        room = make_room()
        table.add(room)
        with pytest.raises(RoomRefused) as refused:
            table.add(make_room())
        assert refused.value.code == "room_exists"
        table.bury(room, RoomEnd(), 1.0)
        with pytest.raises(RoomRefused) as refused:
            table.add(make_room())
        assert refused.value.code == "room_closed"
        table.forget_old(5.9)
        assert table.over("r") == RoomEnd()
        assert table.next_deadline() == 6.0
        table.forget_old(6.0)
        assert (table.over("r"), table.next_deadline(), table.tombstone_count) == (None, None, 0)
        table.add(make_room())

    def test_tables_are_bounded(self) -> None:
        """Too many live or remembered rooms are ``busy``, with the limit."""
        table = RoomTable(2, 1, tombstone_s=5.0)
        first = make_room("1")
        table.add(first)
        table.add(make_room("2"))
        with pytest.raises(RoomRefused) as refused:
            table.add(make_room("3"))
        assert (refused.value.code, refused.value.limit) == ("busy", 2)
        table.bury(first, RoomEnd("aborted", "x"), 0.0)
        with pytest.raises(RoomRefused) as refused:
            table.add(make_room("3"))
        assert (refused.value.code, refused.value.limit) == ("busy", 1)
        assert str(refused.value).startswith("busy: too many rooms ended")
        table.forget_old(5.0)
        table.add(make_room("3"))
        assert {room.id for room in table} == {"2", "3"}
        assert len(table) == 2

    def test_end_says_how(self) -> None:
        """An end without a code is a success."""
        assert RoomEnd().done
        assert not RoomEnd("deadline", "late").done
