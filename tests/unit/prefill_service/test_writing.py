"""Writes start in the order in which they became ready, a bounded number at a time."""

from prefill_service.outputs import WriteChunk
from protocol.messages import StagingReq
from tests.unit.prefill_service.bench import Bench, granted, of_type, sent


def test_no_more_writes_run_than_allowed() -> None:
    """The next write starts when one ends, whichever that is."""
    bench = Bench(max_writes_in_flight=2)
    bench.connect()
    running = []
    for number in range(4):
        bench.whole_room(f"r{number}")
        running += of_type(bench.grant("d0", f"r{number}", 0, granted(number + 1)), WriteChunk)
    assert [write.room for write in running] == ["r0", "r1"]
    assert [write.room for write in of_type(bench.finish(running[1]), WriteChunk)] == ["r2"]
    assert [write.room for write in of_type(bench.fail(running[0]), WriteChunk)] == ["r3"]


def test_waiting_room_is_passed_by_a_ready_one() -> None:
    """The first room waits at the gate, the second goes first, and the first follows with its watermark."""
    bench = Bench(max_writes_in_flight=1)
    bench.connect()
    for room in ("waits", "ready"):
        bench.whole_room(room)
    assert bench.grant("d0", "waits", 0, granted(1, round=1)) == ()
    (write,) = of_type(bench.grant("d0", "ready", 0, granted(2)), WriteChunk)
    assert write.room == "ready"
    assert bench.watermark("d0", 1, 0) == ()
    assert [after.room for after in of_type(bench.finish(write), WriteChunk)] == ["waits"]


def test_order_is_that_of_readiness() -> None:
    """Grants that one watermark lets pass are written from the oldest place on, whatever order they came in."""
    bench = Bench()
    bench.connect()
    for number, offset in enumerate((30, 0, 15)):
        bench.whole_room(f"at {offset}", 1)
        bench.grant("d0", f"at {offset}", 0, granted(number + 1, offset, 1, num_bytes=6))
    out = bench.watermark("d0", 1, 0)
    assert [write.room for write in of_type(out, WriteChunk)] == ["at 0", "at 15", "at 30"]


def test_failed_room_leaves_the_queue() -> None:
    """A room that fails while it waits for its turn is never written."""
    bench = Bench(max_writes_in_flight=1)
    bench.connect()
    first = bench.writing("first")
    bench.whole_room("second")
    bench.grant("d0", "second", 0, granted(2))
    bench.handler.abort_room("second", bench.now)
    assert not of_type(bench.finish(first), WriteChunk)


def test_busy_decode_rank_holds_up_no_other() -> None:
    """Writes that one decode rank does not take leave another's chunks free to start."""
    bench = Bench(max_writes_in_flight=1)
    bench.connect("d0")
    bench.writing("first")
    bench.connect("d1", 1)
    bench.whole_room("other", decode=("d1",))
    assert [write.peer for write in of_type(bench.grant("d1", "other", 0, granted(5)), WriteChunk)] == ["d1"]


def test_lapsed_lease_is_seen_when_a_write_could_start() -> None:
    """A queued chunk of a session that lapsed while this process slept is asked for anew and not written."""
    bench = Bench(max_writes_in_flight=1)
    bench.connect("d0")
    first = bench.writing("first")
    bench.whole_room("queued", decode=("d0",))
    bench.grant("d0", "queued", 0, granted(5))
    bench.now += 60.0
    out = bench.finish(first)
    assert not of_type(out, WriteChunk)
    assert bench.state_of("queued") == "computed"
    assert [request.room for request in sent(bench.accept("d0", out), StagingReq)] == ["first", "queued"]
