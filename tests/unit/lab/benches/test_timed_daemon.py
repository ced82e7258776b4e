"""Notes of timed daemons."""

import json
from pathlib import Path

from lab.benches.timed_daemon import read_notes


def test_the_first_note_counts(tmp_path: Path) -> None:
    """A repeated request does not move the time at which it was first sent."""
    notes = [("asked", "room", 0, 1.0), ("asked", "room", 0, 2.0), ("granted", "room", 0, 3.0)]
    (tmp_path / "notes").write_text("".join(f"{json.dumps(note)}\n" for note in notes))
    assert read_notes(tmp_path / "notes") == {("asked", "room", 0): 1.0, ("granted", "room", 0): 3.0}
