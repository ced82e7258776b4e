"""The table of rooms: live ones by id and by peer, and tombstones for a while."""

import pytest

from prefill_service.outputs import RoomDone
from prefill_service.rooms import Room, RoomRefused, RoomTable, Target
from tests.unit.prefill_service.bench import PAGES


def new_room(room_id: str = "r", *peers: str) -> Room:
    """A room for these peers."""
    return Room(room_id, {peer: Target(peer) for peer in peers or ("d0",)}, PAGES, submitted_at=0.0, progress_at=0.0)


def test_rooms_are_found_by_id_and_by_every_peer() -> None:
    """A live room is found under its id and under each endpoint it goes to, until it is buried."""
    table = RoomTable(tombstone_s=10.0)
    both, one = new_room("both", "d0", "d1"), new_room("one", "d0")
    table.add(both)
    table.add(one)
    assert table.live("both") is both
    assert table.of_peer("d0") == (both, one)
    assert table.of_peer("d1") == (both,)
    table.bury(both, RoomDone("both"), now=0.0)
    assert table.live("both") is None
    assert table.of_peer("d0") == (one,)
    assert table.of_peer("d1") == ()
    assert list(table) == [one]


def test_tombstone_answers_until_it_expires() -> None:
    """The result is known for its time, counts as remembered, and is then gone."""
    table = RoomTable(tombstone_s=10.0)
    for at, room_id in ((0.0, "early"), (5.0, "late")):
        room = new_room(room_id)
        table.add(room)
        table.bury(room, RoomDone(room_id), now=at)
    table.expire(9.9)
    assert table.remembered == 2
    table.expire(10.0)
    assert table.result("early") is None
    assert table.result("late") == RoomDone("late")
    assert table.remembered == 1


def test_room_with_a_running_write_cannot_be_buried() -> None:
    """Its pages are being read."""
    table, room = RoomTable(10.0), new_room()
    table.add(room)
    room.targets["d0"].running[1] = "s"
    with pytest.raises(AssertionError):
        table.bury(room, RoomDone("r"), now=0.0)


def test_complete_means_finished_and_scattered_everywhere() -> None:
    """Each condition alone is not enough, and a target that is owed nothing does not count."""
    room = new_room("r", "d0", "d1")
    room.offered = 1
    room.targets["d0"].created = 1
    assert not room.is_complete
    room.finished = True
    assert not room.is_complete
    room.targets["d1"].owes_nothing = True
    assert room.is_complete


def test_refusal_carries_code_message_and_limit() -> None:
    """The engine's client gets all three."""
    refused = RoomRefused("busy", "full", 8)
    assert (refused.code, refused.message, refused.limit, str(refused)) == ("busy", "full", 8, "full")
