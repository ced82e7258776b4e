"""What the log and the metrics are told: one line per chunk and room, and one for each chunk that stands still."""

import structlog
from structlog.testing import capture_logs
from structlog.typing import FilteringBoundLogger

from decode_service.telling import Telling
from protocol.messages import StagingReq
from runtime.room_waiters import RoomOutcome
from runtime.telemetry import Telemetry
from tests.unit.decode_service.driver import CHUNK_TOKENS, Driver

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Told:
    """A machine and what is told of it."""

    def __init__(self) -> None:
        self.driver = Driver(1, ring=1000)
        self.telemetry = Telemetry()
        log: FilteringBoundLogger = structlog.get_logger()
        self.telling = Telling(5, self.driver.handler, self.telemetry, log, 1.0)


def test_a_chunk_and_its_room_end_in_one_line_each() -> None:
    """The stages, the bytes and the trace; a second look says nothing again."""
    told = Told()
    driver = told.driver
    session = driver.join()
    driver.register("r", 2 * CHUNK_TOKENS)
    told.telling.room_registered("r", driver.now)
    with capture_logs() as lines:
        for chunk in range(2):
            driver.hear(StagingReq(session, "r", chunk, chunk * CHUNK_TOKENS, CHUNK_TOKENS, TRACE))
            grant = driver.handler.state.grants.oldest()
            assert grant is not None
            driver.wait(0.5, alive=[session])
            scatter = driver.write({session: grant.slice_of(driver.handler.state.sessions.current(session).writer)}, "r", chunk)  # type: ignore[union-attr]
            driver.wait(0.25, alive=[session])
            driver.scattered(scatter)
            told.telling.chunks_completed()
        told.telling.chunks_completed()
        told.telling.room_ended(RoomOutcome("r", 5, done=True), driver.now)
    events = [line["event"] for line in lines]
    assert events == ["chunk_completed", "chunk_completed", "room_completed"]
    first, _, room = lines
    stages = {name: first[f"{name}_ms"] for name in ("requested", "gated", "written", "scattered")}
    assert stages == {"requested": 0.0, "gated": 0.0, "written": 500.0, "scattered": 250.0}
    assert (first["room"], first["chunk"], first["num_bytes"], first["traceparent"]) == ("r", 0, 80, TRACE)
    assert (room["chunks"], room["num_bytes"], room["took_ms"], room["traceparent"]) == (2, 160, 1500.0, TRACE)
    value = told.telemetry.metrics.registry.get_sample_value
    assert value("pd_staging_chunk_bytes_total", {"rank": "5"}) == 160
    assert value("pd_staging_stage_duration_seconds_count", {"rank": "5", "stage": "written"}) == 2


def test_a_room_that_failed_says_why() -> None:
    """With what it had come to."""
    told = Told()
    with capture_logs() as lines:
        told.telling.room_registered("r", 1.0)
        told.telling.room_ended(RoomOutcome("r", 5, done=False, code="deadline", message="too late"), 2.0)
    (line,) = lines
    assert (line["event"], line["log_level"], line["code"], line["reason"], line["chunks"]) == (
        "room_failed",
        "warning",
        "deadline",
        "too late",
        0,
    )


def test_a_chunk_that_stands_still_is_named_once_per_doubling() -> None:
    """Room, chunk, whom it waits for, why, and what will happen; after 1, 2, 4 and 8 seconds."""
    told = Told()
    driver = told.driver
    session = driver.join()
    driver.register("r")
    driver.grant([session], "r")
    with capture_logs() as lines:
        for _ in range(20):
            driver.now += 0.5
            told.telling.look_for_stalls(driver.now)
    assert [line["waited_s"] for line in lines] == [1.0, 2.0, 4.0, 8.0]
    line = lines[2]
    assert (line["event"], line["room"], line["chunk"], line["prefills"]) == ("chunk_stalled", "r", 0, ["g-p0"])
    assert "waits for the bytes of prefill 'g-p0' (tp 0 pp 0), silent for 4.0 s" in line["why"]
    assert line["coming"][0] == "in 8.0 s prefill 'g-p0' is fenced unless it says something"
