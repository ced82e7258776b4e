"""One line per room, with what it came to."""

from runtime.room_tally import RoomTallies


def test_a_room_is_summed_up() -> None:
    """Chunks, bytes, duration and the trace, however late that came; afterwards nothing is kept."""
    tallies = RoomTallies()
    tallies.begin("r", 10.0)
    tallies.chunk("r", 100)
    tallies.chunk("r", 50, "00-trace")
    tallies.begin("r", 11.0, "00-other")
    assert tallies.end("r", 12.0) == {"chunks": 2, "num_bytes": 150, "took_ms": 2000.0, "traceparent": "00-trace"}
    assert len(tallies) == 0


def test_unknown_rooms_change_nothing() -> None:
    """A chunk of a room that is over is not counted, and its end has no line."""
    tallies = RoomTallies()
    tallies.chunk("r", 100)
    assert tallies.end("r", 12.0) == {}
    tallies.begin("r", 10.0)
    assert tallies.end("r", 10.0) == {"chunks": 0, "num_bytes": 0, "took_ms": 0.0}
