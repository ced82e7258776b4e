"""The overlap ratio from when chunks were computed and when they travelled."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from lab.model.overlap import measure_overlap


def line(room: str, chunk: int, end: float, took_ms: float) -> str:
    """A line of the prefill daemon's log."""
    stages = {"requested_ms": took_ms / 2, "gated_ms": 0.0, "written_ms": None, "scattered_ms": took_ms / 2}
    at = datetime.fromtimestamp(end, UTC).isoformat()
    return json.dumps({"event": "chunk_completed", "timestamp": at, "room": room, "chunk": chunk, **stages}) + "\n"


def test_only_later_chunks_of_the_same_prompt_hide_a_transfer(tmp_path: Path) -> None:
    """Of two ranks' transfers of a chunk the whole span counts; its own and earlier chunks hide nothing, nor do other rooms."""
    log = tmp_path / "log"
    log.write_text(
        "not JSON\n{broken\n"
        + json.dumps({"event": "plane_opened"})
        + "\n"
        + line("a", 0, 1011.0, 1000.0)  # one rank: 1010 to 1011
        + line("a", 0, 1014.0, 2000.0)  # another: 1012 to 1014
        + line("a", 1, 1016.0, 1000.0)
        + line("b", 0, 1020.0, 1000.0)
    )
    computed = {"a": [(1009.0, 1010.5), (1013.0, 1015.5)], "b": [(1010.0, 1019.0)], "unknown": [(0.0, 1.0)]}
    overlap = measure_overlap(computed, log)
    assert overlap.transfer_s == pytest.approx(4 + 1 + 1)
    assert overlap.hidden_s == pytest.approx(1.0)
    assert overlap.ratio == pytest.approx(1 / 6)


def test_nothing_travelled(tmp_path: Path) -> None:
    """Without a transfer the ratio is 0."""
    log = tmp_path / "log"
    log.write_text("")
    assert measure_overlap({"a": [(1.0, 2.0)]}, log).ratio == 0.0
