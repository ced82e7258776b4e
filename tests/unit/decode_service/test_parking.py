"""Parked requests and early aborts: bounded, taken once, and gone with their session."""

from decode_service.parking import Parking
from protocol.messages import StagingReq


def request(room: str, chunk: int = 0) -> StagingReq:
    """A request for a full chunk."""
    return StagingReq("s", room, chunk, chunk * 4, 4)


def test_taken_once_in_order_of_arrival() -> None:
    """Requests for a room come out as they came in, each once."""
    parking = Parking(10, 10)
    for session, chunk in (("a", 1), ("b", 0), ("a", 0)):
        assert parking.park(session, request("r", chunk))
    assert parking.waiting_for("r") == (("a", 1), ("b", 0), ("a", 0))
    assert parking.take("a", "r", 1) == request("r", 1)
    assert parking.take("a", "r", 1) is None
    assert parking.waiting_for("r") == (("b", 0), ("a", 0))
    assert len(parking) == 2


def test_bound_is_per_session() -> None:
    """A full session is refused; another is not; a place taken back is free again."""
    parking = Parking(1, 10)
    assert parking.park("a", request("r"))
    assert not parking.park("a", request("q"))
    assert parking.park("b", request("q"))
    parking.take("a", "r", 0)
    assert parking.park("a", request("q"))


def test_session_takes_everything_with_it() -> None:
    """Dropping a session leaves no trace of it in any room."""
    parking = Parking(10, 10)
    parking.park("a", request("r"))
    parking.park("a", request("q"))
    parking.park("b", request("r"))
    assert parking.drop_session("a") == [request("r"), request("q")]
    assert parking.drop_session("a") == []
    assert (parking.waiting_for("r"), parking.waiting_for("q")) == ((("b", 0),), ())
    parking.drop_session("b")
    assert (len(parking), parking._by_room, parking._by_session) == (0, {}, {})


def test_room_is_dropped_for_one_session() -> None:
    """What a session waits for in one room goes; its other rooms and other sessions stay."""
    parking = Parking(10, 10)
    for session, room, chunk in (("a", "r", 0), ("a", "r", 1), ("b", "r", 0), ("a", "q", 0)):
        parking.park(session, request(room, chunk))
    assert parking.drop_room("a", "r") == [0, 1]
    assert parking.drop_room("a", "r") == []
    assert (parking.waiting_for("r"), parking.waiting_for("q")) == ((("b", 0),), (("a", 0),))


def test_early_abort_is_for_its_group_and_time() -> None:
    """It holds for the group that said it, until its time, once; the oldest go first when there are too many."""
    parking = Parking(10, 2)
    parking.abort_early("r", "g", "why", until=5.0)
    assert parking.early_abort("r", "h", 1.0) is None
    assert parking.early_abort("r", "g", 1.0) == "why"
    assert parking.early_abort("r", "g", 1.0) is None
    parking.abort_early("r", "g", "why", until=5.0)
    assert parking.early_abort("r", "g", 5.0) is None
    for room in ("a", "b", "c"):
        parking.abort_early(room, "g", room, until=5.0)
    assert [parking.early_abort(room, "g", 1.0) for room in ("a", "b", "c")] == [None, "b", "c"]
