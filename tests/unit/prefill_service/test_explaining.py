"""An explanation says which decode rank is waited for, since when, what the gate needs and has, and what comes next."""

import json

from prefill_service.describing import Unsent
from prefill_service.explaining import Explanation, explain_oldest, explain_refusals, explain_room, waiting_chunks
from protocol.layout import LayoutDifference
from protocol.messages import DoneStatus, GrantStatus, Refused, RefusedCode, Subscribe
from tests.unit.prefill_service.bench import CHUNK_TOKENS, Bench, granted, sent


def why(bench: Bench, room: str = "r", chunk: int | None = 0) -> Explanation:
    """The one explanation of a chunk, which is plain data."""
    (found,) = explain_room(bench.handler.state, room, chunk)
    assert json.loads(json.dumps(found.to_map())) == found.to_map()
    return found


def told(found: Explanation) -> str:
    """Everything it says."""
    return "\n".join((found.summary, *found.lines, *map(str, found.next)))


def test_rooms_that_are_not_on_their_way() -> None:
    """Unknown, complete, failed, and waiting for the engine are told apart."""
    bench = Bench()
    bench.connect()
    assert why(bench, "none").state == "unknown"
    write = bench.written("done")
    bench.judge("d0", "done", 0, write.alloc_id, DoneStatus.SCATTERED)
    assert why(bench, "done").summary == "room 'done' is complete: nothing is waited for"
    bench.whole_room("failed")
    bench.handler.abort_room("failed", bench.now)
    assert "has failed (aborted" in why(bench, "failed", None).summary
    bench.submit("half", 5)
    assert "waits for the prefill engine to submit more (5 tokens, 0 chunks so far" in why(bench, "half", None).summary


def test_a_chunk_without_a_session_says_what_the_decode_rank_said() -> None:
    """The attempt, its age, the last refusal, and when the next attempt goes out."""
    bench = Bench()
    (subscribe,) = sent(bench.handler.add_peer("d0", bench.now), Subscribe)
    bench.hear("d0", Refused(subscribe.attempt, RefusedCode.DRAINING, "soon gone"))
    bench.whole_room("r")
    found = why(bench)
    assert found.state == "computed"
    words = told(found)
    assert "waits for the decode rank at d0 to answer the subscription" in words
    assert "the last one ended with draining: soon gone" in words
    assert "last frame from the decode rank at d0: REFUSED 0.0 s ago; last frame to it: SUBSCRIBE 0.0 s ago" in words
    assert " it subscribes again" in words


def test_a_request_shows_its_answer_and_its_next_repeat() -> None:
    """Unanswered, pending and busy are three different things."""
    bench = Bench()
    bench.connect()
    bench.whole_room("r")
    assert "waits for decode 'decode-0' rank 0 at d0 to grant it a place: asked 1 times, it has not answered" in told(
        why(bench)
    )
    bench.respond("d0", "r", 0, GrantStatus.PENDING)
    assert "it answered pending: another writer has not asked yet" in told(why(bench))
    bench.respond("d0", "r", 0, GrantStatus.BUSY)
    words = told(why(bench))
    assert "it answered busy" in words
    assert " the request is repeated" in words


def test_a_turned_away_chunk_shows_when_its_crowd_asks_again() -> None:
    """One that repeats by itself no more waits for its turn, among so many."""
    bench = Bench(max_busy_at_once=1)
    bench.connect()
    bench.whole_room("r", 3 * CHUNK_TOKENS)
    for chunk in (1, 2, 0):
        bench.respond("d0", "r", chunk, GrantStatus.BUSY)
    words = told(why(bench))
    assert " the next of 3 chunks that were turned away as busy ask again" in words
    assert "the request is repeated" not in words


def test_a_gated_chunk_shows_what_the_gate_needs_and_has() -> None:
    """Grant, watermark needed and heard, lease left, next probe, and whom to ask about the ring."""
    bench = Bench()
    bench.connect()
    bench.whole_room("r")
    bench.grant("d0", "r", 0, granted(4, 20, 2), watermark=(1, 30))
    bench.run(3.0)
    found = why(bench)
    assert (found.state, found.since_s, found.alloc_id) == ("gated", 3.0, 4)
    words = told(found)
    assert "held at the gate by the ring of decode 'decode-0' rank 0 at d0: grant 4, bytes 20 to 80 of round 2" in words
    assert "needs watermark (1, 80), has (1, 30)" in words
    assert "decode-service explain --room r --chunk 0" in words
    assert "last frame from decode 'decode-0' rank 0 at d0: HEARTBEAT_ACK" in words
    assert "the lease of session session-1 (shm) ends in" in words
    assert "it asks for the watermark again" in words
    assert explain_oldest(bench.handler.state)[0].summary == found.summary


def test_writing_written_and_queued_are_told_apart() -> None:
    """What runs here is not blamed on the decode side; what is announced waits for its verdict."""
    bench = Bench(max_writes_in_flight=1)
    bench.connect()
    write = bench.writing("first")
    bench.whole_room("second")
    bench.grant("d0", "second", 0, granted(2))
    assert "is being written here" in why(bench, "first").summary
    assert "waits for a write to decode 'decode-0' rank 0 at d0 to end: 1 run, limit 1" in why(bench, "second").summary
    bench.finish(write)
    words = told(why(bench, "first"))
    assert "waits for the verdict of decode 'decode-0' rank 0 at d0" in words
    assert "CHUNK_READY is repeated" in words


def test_a_write_that_failed_is_tried_again() -> None:
    """The number of failures and the time of the next try are told."""
    bench = Bench()
    bench.connect()
    bench.fail(bench.writing("r"))
    words = told(why(bench))
    assert "waits before it is written again" in words
    assert "1 writes of it failed, limit 3" in words
    assert "the write is tried again" in words


def test_what_waits_and_since_when() -> None:
    """Every chunk of a room that has not failed, with the moment its present state began."""
    bench = Bench()
    bench.connect()
    bench.whole_room("r")
    bench.whole_room("failed")
    bench.handler.abort_room("failed", bench.now)
    assert list(waiting_chunks(bench.handler.state)) == [(("r", "d0", 0), bench.now)]
    assert explain_oldest(Bench().handler.state) == []


def test_a_refusal_is_explained_without_a_room() -> None:
    """Code, message, every row that differs, and when it is tried again; a session ends the explanation."""
    bench = Bench()
    (subscribe,) = sent(bench.handler.add_peer("d0", bench.now), Subscribe)
    assert explain_refusals(bench.handler.state) == []
    rows = (LayoutDifference("page_size", "5", "16"), LayoutDifference("heads", "2", "4"))
    bench.hear("d0", Refused(subscribe.attempt, RefusedCode.LAYOUT, "layouts differ", rows))
    (found,) = explain_refusals(bench.handler.state)
    assert (found.state, found.room, found.peer) == ("refused", None, "d0")
    told_rows = "page_size: prefill 5, decode 16; heads: prefill 2, decode 4"
    assert found.summary == f"the decode rank at d0 gives no session: layout: layouts differ; {told_rows}"
    assert " it subscribes again" in told(found)
    assert found.to_map()["room"] is None
    bench.accept("d0", bench.run(1.0))
    assert explain_refusals(bench.handler.state) == []


def test_a_chunk_whose_decode_rank_is_not_connected() -> None:
    """It waits for the connection, not for an answer to what never left."""
    bench = Bench()
    bench.handler.add_peer("d0", bench.now)
    bench.whole_room("r")
    (found,) = explain_room(bench.handler.state, "r", 0, {"d0": Unsent(bench.now, 2, "no connection to")})
    held_up = "no connection to d0 since 0.0 s (2 messages could not leave)"
    assert f"waits for the decode rank at d0 to be reached: {held_up}" in found.summary
    assert "last frame to it" not in told(found)
