"""What the prefill machine wants is done, and what goes wrong with it comes back to the machine."""

from pathlib import Path

import structlog

from protocol.layout import PageRun
from tests.unit.embedded import RUN, WAIT_S, EmbeddedPair


def test_a_plane_that_does_not_open_is_dropped(tmp_path: Path) -> None:
    """Where the segment cannot be found the prefill says why, and the room goes through on the next plane."""
    other = tmp_path / "elsewhere"
    other.mkdir()
    changes = {"shm_dir": other, "host_id": "one-host"}
    planes = ("shm", "zmq")
    with (
        structlog.testing.capture_logs() as lines,
        EmbeddedPair(tmp_path, planes, decode={"host_id": "one-host"}, prefill=changes) as pair,
    ):
        assert all(outcome.done for outcome in pair.carry("room", 20))
    failed = [line for line in lines if line["event"] == "plane_open_failed"]
    assert "shm_dir" in failed[0]["reason"]
    assert {line["plane"] for line in lines if line["event"] == "plane_opened"} == {"zmq"}


def test_a_gather_that_fails_is_tried_again_and_then_fails_its_room(tmp_path: Path) -> None:
    """Pages that turn out not to hold the tokens fail the room with the reason, not the daemon."""
    with EmbeddedPair(tmp_path) as pair:
        pair.server.engine.register_room("room", 0, "prefill", 8, RUN).result(WAIT_S)
        pair.source.close()
        pair.submit("room", 8)
        outcome = pair.client.engine.wait_room("room", 0).result(WAIT_S)
        assert not outcome.done
        assert "closed" in outcome.message
        assert not pair.server.engine.wait_room("room", 0).result(WAIT_S).done


def test_a_room_for_two_places_of_which_one_is_absent_waits_for_it(tmp_path: Path) -> None:
    """An endpoint where nobody listens holds up its own room and no other."""
    with EmbeddedPair(tmp_path) as pair:
        pair.client.engine.submit_chunk("stuck", 0, ["tcp://127.0.0.1:1"], 0, 8, PageRun((0, 1))).result(WAIT_S)
        assert all(outcome.done for outcome in pair.carry("room", 8))
        pair.client.engine.abort_room("stuck", 0).result(WAIT_S)
        assert not pair.client.engine.wait_room("stuck", 0).result(WAIT_S).done
