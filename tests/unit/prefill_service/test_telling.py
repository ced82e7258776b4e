"""What the log and the metrics are told: one line per chunk and room, and one for each chunk that stands still."""

from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs

from prefill_service.telling import Telling
from runtime.engine_protocol import EngineError
from runtime.telemetry import Telemetry
from tests.unit.embedded import RUN, WAIT_S, EmbeddedPair
from tests.unit.prefill_service.bench import Bench, granted

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
STAGES = ("requested_ms", "gated_ms", "written_ms", "scattered_ms")


def test_a_chunk_says_where_its_time_went(tmp_path: Path) -> None:
    """Every chunk ends in one line with its four stages on each side, every room in one line, all with the engine's trace."""
    with capture_logs() as lines, EmbeddedPair(tmp_path) as pair:
        pair.server.engine.register_room("room", 0, "prefill", 20, RUN).result(WAIT_S)
        pair.client.engine.submit_chunk("room", 0, [pair.endpoint], 0, 20, RUN, TRACE).result(WAIT_S)
        pair.client.engine.finish_room("room", 0).result(WAIT_S)
        assert pair.server.engine.wait_room("room", 0).result(WAIT_S).done
        assert pair.client.engine.wait_room("room", 0).result(WAIT_S).done
    for side in ("prefill_id", "decode_id"):
        chunks = [line for line in lines if line["event"] == "chunk_completed" and side in line]
        assert [line["chunk"] for line in chunks] == [0, 1, 2]
        assert all(line[stage] >= 0 for line in chunks for stage in STAGES)
        (room,) = [line for line in lines if line["event"] == "room_completed" and side in line]
        assert (room["chunks"], room["num_bytes"]) == (3, sum(line["num_bytes"] for line in chunks))
        assert {line["traceparent"] for line in (*chunks, room)} == {TRACE}


def test_a_chunk_that_nobody_grants_is_named(tmp_path: Path) -> None:
    """A daemon says by itself what its chunk waits for."""
    with capture_logs() as lines, EmbeddedPair(tmp_path, prefill={"stall_warn_s": 0.01}) as pair:
        pair.submit("room", 8)
        with pytest.raises(EngineError, match="still live"):
            pair.client.engine.wait_room("room", 0, timeout_s=0.5).result(WAIT_S)
        pair.client.engine.abort_room("room", 0).result(WAIT_S)
    stalls = [line for line in lines if line["event"] == "chunk_stalled" and line["state"] == "requested"]
    assert stalls
    assert (stalls[0]["room"], stalls[0]["chunk"], stalls[0]["peer"]) == ("room", 0, pair.endpoint)
    assert "to grant it a place" in stalls[0]["why"]


def test_a_gated_chunk_is_named_once_per_doubling() -> None:
    """With what its gate needs and has; without rooms nobody looks."""
    bench = Bench()
    telling = Telling(0, bench.handler, Telemetry(), structlog.get_logger(), 1.0)
    assert telling.next_look() is None
    bench.connect()
    bench.whole_room("r")
    bench.grant("d0", "r", 0, granted(4, 20, 2), watermark=(1, 30))
    with capture_logs() as lines:
        for _ in range(10):
            bench.run(0.5)
            telling.look_for_stalls(bench.now)
    assert [line["waited_s"] for line in lines] == [1.0, 2.0, 4.0]
    assert "needs watermark (1, 80), has (1, 30)" in lines[0]["why"]
    assert telling.next_look() == bench.now + 0.5
