"""What an operator is told: plain values that say who waits for what, and who pins the ring."""

from typing import Any

import msgpack

from decode_service.snapshot import take_snapshot
from tests.unit.decode_service.driver import CHUNK_TOKENS, Driver


def snapshot(driver: Driver) -> dict[str, Any]:
    """The snapshot as it arrives at the far end of the engine's socket."""
    packed = msgpack.packb(driver.handler.snapshot())
    unpacked = msgpack.unpackb(packed)
    assert isinstance(unpacked, dict)
    return unpacked


def test_idle_rank() -> None:
    """A fresh rank describes its identity and its empty ring."""
    shot = snapshot(Driver(1))
    assert (shot["decode_id"], shot["decode_rank"], shot["epoch"], shot["draining"]) == (
        "decode-0",
        0,
        "00000000000000e0",
        False,
    )
    assert shot["ring"] == {
        "total_bytes": 100,
        "round": 0,
        "head": 0,
        "watermark": [0, 0],
        "watermark_age_s": None,
        "live_grants": 0,
        "live_bytes": 0,
        "oldest_grant": None,
    }
    assert (shot["grants"], shot["sessions"], shot["rooms"]) == ([], [], [])


def test_who_pins_the_ring_and_why() -> None:
    """The oldest grant names its room, its state, its age and the writer that is not quiet."""
    driver = Driver(2)
    a, b = driver.join(0), driver.join(1)
    driver.register("r")
    granted = driver.grant([a, b], "r")
    driver.ready(b, "r", granted[b])
    driver.wait(13, alive=[b])
    oldest = snapshot(driver)["ring"]["oldest_grant"]
    assert (oldest["room"], oldest["state"], oldest["age_s"]) == ("r", "closed", 13.0)
    assert oldest["closed_reason"].startswith("writer fenced: silent for 12")
    assert [(w["tp_rank"], w["session"], w["quiet"]) for w in oldest["writers"]] == [(0, a, False), (1, b, True)]


def test_who_has_not_asked() -> None:
    """A chunk without a grant lists the writers that are missing; a granted one its grant."""
    driver = Driver(2, ring=1000)
    a, b = driver.join(0), driver.join(1)
    driver.register("r", 3 * CHUNK_TOKENS)
    driver.ask(a, "r", 0)
    granted = driver.grant([a, b], "r", 1)
    driver.move([a, b], "r", 2)
    (room,) = snapshot(driver)["rooms"]
    assert (room["chunks"], room["chunks_scattered"], room["granted"], room["failed"]) == (3, 1, 1, "")
    waiting, moving = room["open_chunks"]
    assert (waiting["chunk"], waiting["asked"], waiting["missing"], waiting["alloc_id"]) == (0, [[0, 0]], [[1, 0]], None)
    assert (moving["chunk"], moving["missing"], moving["alloc_id"]) == (1, [], granted[a].alloc_id)


def test_sessions_and_their_silence() -> None:
    """Each session says how long it was silent and what it holds; counts are exact."""
    driver = Driver(1)
    session = driver.join()
    driver.register("r")
    driver.grant([session], "r")
    driver.ask(session, "unheard-of")
    driver.wait(3)
    shot = snapshot(driver)
    (row,) = shot["sessions"]
    assert (row["session"], row["prefill_id"], row["group"], row["plane"]) == (session, "g-p0", "g", "shm")
    assert (row["fenced"], row["silent_s"], row["lease_left_s"]) == (False, 3.0, 9.0)
    assert (row["unwritten_grants"], row["chunks_in_flight"], row["blocked"]) == (1, 1, None)
    assert (row["heard_s_ago"]["STAGING_REQ"], row["sent_s_ago"]["STAGING_RSP"], row["sends_failed"]) == (3.0, 3.0, 0)
    assert (row["told_watermark"], row["seen"]) == ([0, 0], [0, 0])
    assert (shot["session_count"], shot["room_count"], shot["parked_requests"]) == (1, 1, 1)
    assert shot["counters"]["sessions_opened"] == 1


def test_tables_can_be_cut_short() -> None:
    """Fewer rows where only counts are wanted; the counts stay exact."""
    driver = Driver(1, ring=1000)
    driver.join()
    driver.register("r")
    shot = driver.handler.snapshot()
    cut = take_snapshot(driver.handler.as_of(driver.now + 5), 0)
    assert (cut["sessions"], cut["rooms"], cut["session_count"], cut["room_count"]) == ([], [], 1, 1)
    assert len(shot["rooms"]) == 1  # type: ignore[arg-type]
    assert driver.handler.state.now == driver.now


def test_looking_on_takes_time_along() -> None:
    """Ages are those of the moment of the look, and the machine itself does not notice it."""
    driver = Driver(1)
    session = driver.join()
    rows: Any = take_snapshot(driver.handler.as_of(driver.now + 5), 10)["sessions"]
    assert [(row["session"], row["silent_s"]) for row in rows] == [(session, 5.0)]
    assert driver.handler.as_of(driver.now - 5).now == driver.now
