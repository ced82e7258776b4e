"""What became of the latest grants is written down once, in order, and within a bound."""

from decode_service.history import MAX_RECORDS, GrantOutcome
from tests.unit.decode_service.driver import CHUNK_TOKENS, Driver


def test_a_consumed_grant_leaves_every_stage() -> None:
    """The record has the room, the place, and when it was asked for, granted, ready, written and given back."""
    driver = Driver(1, ring=1000)
    session = driver.join()
    driver.register("r")
    granted = driver.grant([session], "r")
    asked_at = driver.now
    driver.wait(1.0, alive=[session])
    scatter = driver.write(granted, "r")
    driver.wait(1.0, alive=[session])
    driver.scattered(scatter)
    (record,) = driver.handler.state.history
    assert (record.room, record.group, record.chunk, record.alloc_id) == ("r", "g", 0, granted[session].alloc_id)
    assert (record.round, record.offset, record.end, record.num_bytes) == (0, 0, 80, 80)
    assert (record.asked_at, record.granted_at, record.ready_at) == (asked_at, asked_at, asked_at)
    assert (record.written_at, record.closed_at, record.ended_at) == (asked_at + 1.0, None, asked_at + 2.0)
    assert record.outcome is GrantOutcome.CONSUMED
    assert driver.handler.state.history.last_end() == driver.now


def test_released_and_discarded_grants_are_told_apart() -> None:
    """One that closed and was proven quiet was released; one that went with its region was discarded."""
    driver = Driver(1, ring=1000, quarantine_s=5.0)
    session = driver.join()
    for room in ("aborted", "pinned"):
        driver.register(room)
        driver.grant([session], room)
    driver.abort(session, "aborted")
    driver.wait(20)
    driver.replace_region()
    outcomes = [(record.room, record.outcome.value) for record in driver.handler.state.history]
    assert outcomes == [("aborted", "released"), ("pinned", "discarded")]


def test_what_came_after_is_found_and_memory_is_bounded() -> None:
    """A reader that remembers how many there were gets the new ones, as far as they are still kept."""
    driver = Driver(1, ring=1000)
    session, count = driver.join(), 5
    driver.register("r", count * CHUNK_TOKENS)
    history = driver.handler.state.history
    for chunk in range(count):
        driver.move([session], "r", chunk)
    assert [record.chunk for record in history.after(3)] == [3, 4]
    assert [record.chunk for record in history.after(0)] == [0, 1, 2, 3, 4]
    assert list(history.after(count)) == []
    assert (history.total, len(history)) == (count, count)
    for _ in range(MAX_RECORDS):
        history.total += 1
        history._records.append(next(iter(history)))
    assert len(history) == MAX_RECORDS
    assert len(list(history.after(0))) == MAX_RECORDS
