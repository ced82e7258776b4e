"""A replayed decode machine draws its ring."""

from pathlib import Path

from lab.flight_plot import plot
from lab.replay import replay_flight
from runtime.flight_file import read_flight
from tests.unit.lab.flights import recorded_transfer, write_dump


def test_grants_are_drawn(tmp_path: Path) -> None:
    """Each grant of the decode machine is a box named after its room; prefill machines own no ring."""
    recordings = [recorder.recording() for recorder in recorded_transfer()]
    picture = plot(replay_flight(read_flight(write_dump(tmp_path / "dump.jsonl", *recordings))))
    assert 'data-grant="room-0/0"' in picture
    assert 'data-grant="room-1/0"' in picture
    assert "decode-0" in picture
    assert "prefill-0" not in picture
