"""A chunk's way: each answer of D's lost, late, twice, out of order, or about something else."""

import pytest

from prefill_service.outputs import RoomDone, RoomFailed, WriteChunk
from protocol.layout import PageRun
from protocol.messages import Abort, ChunkReady, DoneStatus, Error, ErrorCode, GrantSlice, GrantStatus, StagingReq
from tests.unit.prefill_service.bench import PAGES, Bench, granted, of_type, rank_layout, sent


def ready(bench: Bench) -> Bench:
    """A bench with one session."""
    bench.connect("d0")
    return bench


def test_one_chunk_from_request_to_end() -> None:
    """Request, grant, write, word, verdict: exactly these outputs, one after the other."""
    bench = ready(Bench())
    session = bench.sessions["d0"]
    assert sent(bench.whole_room("r"), StagingReq) == [StagingReq(session, "r", 0, 0, 10)]
    (write,) = bench.grant("d0", "r", 0, granted(4, 20))
    assert write == WriteChunk(1, "d0", session, "r", 0, 4, 1, 0, 10, PAGES, 20, 60)
    assert isinstance(write, WriteChunk)
    assert sent(bench.finish(write, 1234), ChunkReady) == [ChunkReady(session, "r", 0, 4, 1, 60, 1234)]
    assert bench.judge("d0", "r", 0, 4, DoneStatus.SCATTERED) == (RoomDone("r"),)
    assert bench.is_idle()


def test_second_writer_writes_behind_the_first() -> None:
    """The write goes to the grant's offset plus this writer's own."""
    bench = Bench(layout=rank_layout(1, 4, heads=4))
    bench.connect(layout=rank_layout(0, 2, heads=4), ring_size=200)
    bench.whole_room("r")
    (write,) = of_type(bench.grant("d0", "r", 0, GrantSlice(1, 10, 0, 130, 60, 60)), WriteChunk)
    assert (write.offset, write.num_bytes) == (70, 60)


def test_lost_answer_is_asked_for_again() -> None:
    """The one STAGING_RSP is lost: the same request comes again, with the same tokens, and the answer is then taken."""
    bench = ready(Bench())
    first = sent(bench.whole_room("r"), StagingReq)
    assert sent(bench.run(0.2), StagingReq) == first
    assert of_type(bench.grant("d0", "r", 0, granted(1)), WriteChunk)


@pytest.mark.parametrize("status", [GrantStatus.PENDING, GrantStatus.BUSY])
def test_pending_and_busy_keep_asking(status: GrantStatus) -> None:
    """Neither ends the asking nor the room."""
    bench = ready(Bench())
    bench.whole_room("r")
    assert bench.respond("d0", "r", 0, status) == ()
    assert sent(bench.run(0.4), StagingReq)
    assert of_type(bench.grant("d0", "r", 0, granted(1)), WriteChunk)


def test_busy_chunk_asks_as_soon_as_another_is_scattered() -> None:
    """A place that becomes free at D is asked for at once, by the chunk that was turned away first."""
    bench = ready(Bench())
    bench.written("one")
    bench.submit("two", 30)
    for chunk in range(3):
        bench.respond("d0", "two", chunk, GrantStatus.BUSY)
    out = bench.judge("d0", "one", 0, 1, DoneStatus.SCATTERED)
    assert [request.chunk for request in sent(out, StagingReq)] == [0]


def test_no_request_is_withheld() -> None:
    """A hundred chunks are asked for at once, whatever has been granted so far."""
    bench = ready(Bench(page_size=100))
    assert [request.chunk for request in sent(bench.submit("r", 1000), StagingReq)] == list(range(100))


def test_repeated_grant_changes_nothing() -> None:
    """The same grant again, waiting or being written or written, starts no second write."""
    bench = ready(Bench())
    bench.whole_room("r")
    bench.grant("d0", "r", 0, granted(1, round=1))
    assert bench.grant("d0", "r", 0, granted(1, round=1)) == ()
    (write,) = of_type(bench.watermark("d0", 1, 0), WriteChunk)
    assert bench.grant("d0", "r", 0, granted(1, round=1)) == ()
    bench.finish(write)
    assert bench.grant("d0", "r", 0, granted(1, round=1)) == ()
    assert bench.counters["grants_repeated"] == 3


def test_newer_grant_replaces_one_that_is_not_being_written() -> None:
    """D has granted anew: the newer place is written, the older never, in whichever order they arrive."""
    bench = ready(Bench())
    bench.whole_room("r")
    bench.grant("d0", "r", 0, granted(5, 0, 1))
    bench.grant("d0", "r", 0, granted(7, 20, 1))
    bench.grant("d0", "r", 0, granted(6, 10, 1))
    (write,) = of_type(bench.watermark("d0", 1, 0), WriteChunk)
    assert (write.alloc_id, write.offset) == (7, 20)


def test_other_grant_is_ignored_while_writing() -> None:
    """What is being written or written goes on until D calls it stale."""
    bench = ready(Bench())
    write = bench.writing(alloc_id=1)
    assert bench.grant("d0", "r", 0, granted(2, 20)) == ()
    bench.finish(write)
    assert bench.grant("d0", "r", 0, granted(2, 20)) == ()
    assert sent(bench.judge("d0", "r", 0, 1, DoneStatus.STALE), StagingReq)
    assert of_type(bench.grant("d0", "r", 0, granted(2, 20)), WriteChunk)


def test_watermark_in_the_answer_counts() -> None:
    """A grant that its own answer's watermark lets pass is written at once, and one that waited passes with any answer."""
    bench = ready(Bench())
    bench.whole_room("one")
    bench.whole_room("two")
    assert bench.grant("d0", "one", 0, granted(1, round=3)) == ()
    out = bench.respond("d0", "two", 0, GrantStatus.PENDING, watermark=(3, 0))
    assert [write.room for write in of_type(out, WriteChunk)] == ["one"]
    assert of_type(bench.grant("d0", "two", 0, granted(2, round=4), watermark=(4, 0)), WriteChunk)


@pytest.mark.parametrize(
    "grant",
    [
        GrantSlice(1, 0, 0, 60, 0, 59),
        GrantSlice(1, 0, 0, 61, 0, 60),
        GrantSlice(1, 0, 0, 60, 1, 60),
        GrantSlice(1, 50, 0, 110, 0, 60),
    ],
)
def test_grant_that_does_not_fit_the_slice_fails_the_room(grant: GrantSlice) -> None:
    """A grant that is not exactly this chunk's is never written; the room fails and D is told."""
    bench = ready(Bench())
    bench.whole_room("r")
    out = bench.grant("d0", "r", 0, grant)
    assert [failed.code for failed in of_type(out, RoomFailed)] == ["bad_grant"]
    assert sent(out, Abort)
    assert not of_type(out, WriteChunk)


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (GrantStatus.OVERSIZED, "oversized"),
        (GrantStatus.INVALID, "invalid"),
        (GrantStatus.UNKNOWN_ROOM, "unknown_room"),
        (GrantStatus.ABORTED, "aborted_by_decode"),
    ],
)
def test_refused_chunk_fails_its_room_alone(status: GrantStatus, code: str) -> None:
    """The room fails with D's words; another room of the same session goes on."""
    bench = ready(Bench())
    bench.whole_room("r")
    bench.whole_room("other")
    out = bench.respond("d0", "r", 0, status, message="because")
    assert of_type(out, RoomFailed) == [RoomFailed("r", code, "d0: because")]
    assert of_type(bench.grant("d0", "other", 0, granted(1)), WriteChunk)


@pytest.mark.parametrize("stage", ["requested", "granted", "written"])
def test_done_ends_a_chunk_at_any_stage(stage: str) -> None:
    """D has the chunk already: nothing more is done for it."""
    bench = ready(Bench())
    bench.whole_room("r")
    if stage != "requested":
        bench.grant("d0", "r", 0, granted(1, round=1))
    if stage == "written":
        (write,) = of_type(bench.watermark("d0", 1, 0), WriteChunk)
        bench.finish(write)
    assert of_type(bench.respond("d0", "r", 0, GrantStatus.DONE), RoomDone) == [RoomDone("r")]
    assert not of_type(bench.watermark("d0", 9, 0), WriteChunk)


@pytest.mark.parametrize("by", ["answer", "verdict"])
def test_done_while_writing_waits_for_the_write(by: str) -> None:
    """The source pages are the engine's again only when the write that reads them has ended."""
    bench = ready(Bench())
    write = bench.writing()
    if by == "answer":
        assert bench.respond("d0", "r", 0, GrantStatus.DONE) == ()
    else:
        assert bench.judge("d0", "r", 0, 1, DoneStatus.SCATTERED) == ()
    assert bench.finish(write) == (RoomDone("r"),)


def test_rejected_attempt_is_written_again() -> None:
    """The same place is written under the next number; a repeat of the rejection is ignored."""
    bench = ready(Bench())
    bench.written()
    (again,) = of_type(bench.judge("d0", "r", 0, 1, DoneStatus.REJECTED), WriteChunk)
    assert (again.alloc_id, again.attempt) == (1, 2)
    assert bench.judge("d0", "r", 0, 1, DoneStatus.REJECTED) == ()
    assert [word.attempt for word in sent(bench.finish(again), ChunkReady)] == [2]
    assert bench.judge("d0", "r", 0, 1, DoneStatus.REJECTED) == ()
    assert bench.state_of() == "written"
    assert bench.counters["verdicts_ignored_rejected"] == 2


def test_rejection_of_another_grant_is_ignored() -> None:
    """Only the grant that this chunk holds can be rejected."""
    bench = ready(Bench())
    bench.written(alloc_id=3)
    assert bench.judge("d0", "r", 0, 2, DoneStatus.REJECTED) == ()
    assert bench.state_of() == "written"


def test_stale_grant_is_asked_for_anew_and_never_taken_again() -> None:
    """D does not have the grant any more: a late repeat of it means nothing, and the new one is written from the source."""
    bench = ready(Bench())
    bench.written(alloc_id=1)
    assert sent(bench.judge("d0", "r", 0, 1, DoneStatus.STALE), StagingReq)
    assert bench.grant("d0", "r", 0, granted(1)) == ()
    assert bench.state_of() == "requested"
    (write,) = of_type(bench.grant("d0", "r", 0, granted(2, 20)), WriteChunk)
    assert (write.alloc_id, write.attempt) == (2, 1)


def test_stale_grant_at_the_gate_is_asked_for_anew() -> None:
    """A grant that waits can become stale too, and then never passes."""
    bench = ready(Bench())
    bench.whole_room("r")
    bench.grant("d0", "r", 0, granted(1, round=1))
    assert sent(bench.judge("d0", "r", 0, 1, DoneStatus.STALE), StagingReq)
    assert not of_type(bench.watermark("d0", 5, 0), WriteChunk)


def test_other_stale_verdicts_are_ignored() -> None:
    """Stale about another grant, or while the write runs, changes nothing."""
    bench = ready(Bench())
    write = bench.writing(alloc_id=2)
    assert bench.judge("d0", "r", 0, 2, DoneStatus.STALE) == ()
    bench.finish(write)
    assert bench.judge("d0", "r", 0, 1, DoneStatus.STALE) == ()
    assert bench.state_of() == "written"
    assert bench.counters["verdicts_ignored_stale"] == 2


def test_late_frames_after_the_end_are_counted_and_dropped() -> None:
    """Answers and verdicts for a room that is over, a chunk that is scattered, or an index nobody offered do nothing."""
    bench = ready(Bench())
    bench.submit("r", 20)
    assert bench.respond("d0", "r", 10**9, GrantStatus.PENDING) == ()
    bench.respond("d0", "r", 0, GrantStatus.DONE)
    assert bench.grant("d0", "r", 0, granted(1)) == ()
    assert bench.grant("d0", "nobody", 0, granted(1)) == ()
    assert bench.judge("d0", "nobody", 0, 1, DoneStatus.STALE) == ()
    assert bench.counters["answers_for_closed_chunk"] == 2
    assert bench.counters["answers_for_unknown_room"] == 2


def test_frames_of_a_former_session_are_dropped() -> None:
    """A grant, verdict or watermark of the session before cannot touch what the present one does."""
    bench = ready(Bench())
    old = bench.sessions["d0"]
    bench.whole_room("r")
    bench.now += 1.0
    bench.accept("d0", bench.hear("d0", Error(old, ErrorCode.UNKNOWN_SESSION, "who?", "STAGING_REQ")))
    assert bench.respond("d0", "r", 0, GrantStatus.GRANTED, granted(1), session=old) == ()
    assert bench.judge("d0", "r", 0, 1, DoneStatus.SCATTERED, session=old) == ()
    assert bench.watermark("d0", 9, 0, session=old) == ()
    assert bench.counters["stale_sessions"] == 3
    assert bench.state_of() == "requested"


def test_lost_session_returns_chunks_to_their_source() -> None:
    """Requested, waiting and written chunks are all asked for again in the next session, none of their grants lives on."""
    bench = ready(Bench())
    bench.submit("r", 30)
    (write,) = of_type(bench.grant("d0", "r", 0, granted(1)), WriteChunk)
    bench.finish(write)
    bench.grant("d0", "r", 1, granted(2, round=1))
    bench.now += 1.0
    error = Error(bench.sessions["d0"], ErrorCode.UNKNOWN_SESSION, "who?", "CHUNK_READY")
    out = bench.accept("d0", bench.hear("d0", error))
    assert [request.chunk for request in sent(out, StagingReq)] == [0, 1, 2]
    assert not of_type(bench.watermark("d0", 9, 0), WriteChunk)
    (again,) = of_type(bench.grant("d0", "r", 0, granted(1)), WriteChunk)
    assert again.attempt == 1


def test_failed_write_is_tried_again_with_the_same_grant() -> None:
    """Where D writes or sees the same memory, a failed write costs a short wait and no new attempt."""
    bench = ready(Bench())
    write = bench.writing()
    assert bench.fail(write) == ()
    (again,) = of_type(bench.run(0.05), WriteChunk)
    assert (again.alloc_id, again.attempt) == (write.alloc_id, write.attempt)
    assert again.write_id != write.write_id


def test_write_that_fails_for_good_fails_the_room() -> None:
    """After the last failure allowed the room fails and names the reason."""
    bench = ready(Bench(max_write_failures=2))
    bench.fail(bench.writing())
    (again,) = of_type(bench.run(0.05), WriteChunk)
    out = bench.fail(again, "pool is gone")
    assert of_type(out, RoomFailed) == [RoomFailed("r", "write_failed", "d0: chunk 0 failed 2 times, lastly: pool is gone")]
    assert sent(out, Abort)


def test_newer_grant_while_a_failed_write_waits() -> None:
    """The retry of a failed write uses the grant that is then current, and starts once."""
    bench = ready(Bench())
    bench.fail(bench.writing())
    (write,) = of_type(bench.grant("d0", "r", 0, granted(2, 20)), WriteChunk)
    assert write.alloc_id == 2
    assert not of_type(bench.run(1.0), WriteChunk)


def test_rank_that_is_owed_nothing_is_never_asked() -> None:
    """A decode rank with which this writer shares no heads counts as done, before and after it was heard of."""
    bench = Bench(layout=rank_layout(0, 2))
    out = bench.whole_room("before", decode=("d1",))
    out = bench.accept("d1", out, rank=1)
    assert of_type(out, RoomDone) == [RoomDone("before")]
    assert not sent(out, StagingReq)
    assert of_type(bench.whole_room("after", decode=("d1",)), RoomDone) == [RoomDone("after")]


def test_destinations_are_served_each_for_itself() -> None:
    """One decode rank is ready and the other is not: the ready one gets exactly one write, and the room waits for both."""
    bench = ready(Bench())
    bench.connect("d1", 1)
    bench.whole_room("r", decode=("d0", "d1"))
    (first,) = of_type(bench.grant("d0", "r", 0, granted(1)), WriteChunk)
    assert bench.grant("d1", "r", 0, granted(9, round=1)) == ()
    bench.finish(first)
    assert bench.judge("d0", "r", 0, 1, DoneStatus.SCATTERED) == ()
    (second,) = of_type(bench.watermark("d1", 1, 0), WriteChunk)
    assert (first.peer, second.peer) == ("d0", "d1")
    bench.finish(second)
    assert bench.judge("d1", "r", 0, 9, DoneStatus.SCATTERED) == (RoomDone("r"),)


def test_room_is_done_only_with_its_last_verdict() -> None:
    """The engine's word that the room is finished, before or after the verdicts, does not replace any of them."""
    bench = ready(Bench())
    bench.submit("r", 15)
    (write,) = of_type(bench.grant("d0", "r", 0, granted(1)), WriteChunk)
    bench.finish(write)
    assert bench.judge("d0", "r", 0, 1, DoneStatus.SCATTERED) == ()
    bench.handler.finish_room("r", bench.now)
    (last,) = of_type(bench.grant("d0", "r", 1, granted(2, 60, num_bytes=30)), WriteChunk)
    assert bench.finish(last) != (RoomDone("r"),)
    assert bench.judge("d0", "r", 1, 2, DoneStatus.SCATTERED) == (RoomDone("r"),)


def test_latest_pages_are_written() -> None:
    """A chunk that is not written yet reads from the page list of the latest submission."""
    bench = ready(Bench())
    bench.submit("r", 10, source=PageRun((0, 1)))
    bench.submit("r", 10, start=10, source=PageRun((0, 1, 2, 3)))
    (write,) = of_type(bench.grant("d0", "r", 0, granted(1)), WriteChunk)
    assert write.source == PageRun((0, 1, 2, 3))
