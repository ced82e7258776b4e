"""What P says about a chunk is repeated until it is answered, on the channel where it belongs."""

import pytest

from prefill_service.outputs import Channel, RoomFailed, Send, WriteChunk
from prefill_service.repeats import BUNDLE_S
from prefill_service.state import TimerKey, TimerKind
from protocol.messages import ChunkReady, DoneStatus, Error, ErrorCode, GrantStatus, StagingReq, WriteFailed
from tests.unit.prefill_service.bench import CHUNK_TOKENS, PAGES, Bench, granted, of_type, rank_layout, sent


def test_ready_is_repeated_until_the_verdict() -> None:
    """CHUNK_READY may be lost any number of times; it stops with the verdict."""
    bench = Bench()
    bench.connect()
    bench.written()
    words = sent(bench.run(5.0), ChunkReady)
    assert 4 <= len(words) <= 8
    assert len(set(words)) == 1
    bench.judge("d0", "r", 0, 1, DoneStatus.SCATTERED)
    assert not sent(bench.run(5.0), ChunkReady)


def test_ready_repeats_are_quick_again_for_each_write() -> None:
    """The intervals of the requests before do not slow down the words about the bytes."""
    bench = Bench()
    bench.connect()
    bench.whole_room("r")
    bench.run(10.0)
    (write,) = of_type(bench.grant("d0", "r", 0, granted(1)), WriteChunk)
    bench.finish(write)
    assert sent(bench.run(0.2), ChunkReady)


@pytest.mark.parametrize(("plane", "channel"), [("zmq", Channel.DATA), ("shm", Channel.CONTROL)])
def test_ready_follows_the_payload(plane: str, channel: Channel) -> None:
    """Where the payload has a pipe of its own the word goes through it, first and repeated; everything else is control."""
    bench = Bench(planes=(plane,))
    bench.connect()
    write = bench.writing()
    out = bench.finish(write) + bench.run(0.2)
    sends = [output for output in of_type(out, Send) if isinstance(output.message, ChunkReady)]
    assert [output.channel for output in sends] == [channel, channel]
    assert not [output for output in of_type(out, Send) if output not in sends and output.channel is Channel.DATA]


def test_traceparent_rides_in_request_and_word() -> None:
    """The trace context of the room travels with what D may record."""
    bench = Bench()
    bench.connect()
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    out = bench.handler.submit_chunk("r", ("d0",), 0, 10, PAGES, bench.now, trace)
    assert [request.traceparent for request in sent(out, StagingReq)] == [trace]
    (write,) = of_type(bench.grant("d0", "r", 0, granted(1)), WriteChunk)
    assert [word.traceparent for word in sent(bench.finish(write), ChunkReady)] == [trace]


def one_sided() -> tuple[Bench, WriteChunk]:
    """A write that runs on a plane where a failed write may still land."""
    bench = Bench(planes=("nixl",))
    bench.connect()
    return bench, bench.writing(alloc_id=1)


def test_one_sided_failure_taints_the_grant() -> None:
    """D is told that the bytes may still land and is asked for another place, again and again, until a newer grant comes."""
    bench, write = one_sided()
    out = bench.fail(write, "timed out")
    session = bench.sessions["d0"]
    assert sent(out, WriteFailed) == [WriteFailed(session, "r", 0, 1, 1, "timed out")]
    assert sent(out, StagingReq)
    again = bench.run(0.2)
    assert sent(again, WriteFailed) == sent(out, WriteFailed)
    assert sent(again, StagingReq) == sent(out, StagingReq)
    (anew,) = of_type(bench.grant("d0", "r", 0, granted(2, 20)), WriteChunk)
    assert anew.alloc_id == 2
    assert not sent(bench.run(2.0), WriteFailed)


def test_tainted_grant_is_never_written_again() -> None:
    """A late repeat of the tainted grant, or a pending that was on its way, does not end the telling."""
    bench, write = one_sided()
    bench.fail(write)
    assert bench.grant("d0", "r", 0, granted(1)) == ()
    assert bench.respond("d0", "r", 0, GrantStatus.PENDING) == ()
    assert bench.state_of() == "tainted"
    assert sent(bench.run(0.5), WriteFailed)


def test_one_sided_failures_end_with_the_room() -> None:
    """The failures allowed count over all grants of the chunk."""
    bench, write = one_sided()
    out = bench.fail(write)
    for alloc_id in (2, 3):
        (write,) = of_type(bench.grant("d0", "r", 0, granted(alloc_id)), WriteChunk)
        out = bench.fail(write)
    assert [failed.code for failed in of_type(out, RoomFailed)] == ["write_failed"]


def turned_away(bench: Bench, seconds: float) -> list[int]:
    """The chunks that ask in so many seconds, in their order; all that ask in vain."""
    asked = []
    until = bench.now + seconds
    while bench.now < until:
        for message in sent(bench.run(BUNDLE_S / 5), StagingReq):
            asked.append(message.chunk)
            bench.respond("d0", "r", message.chunk, GrantStatus.BUSY)
    return asked


def test_crowd_of_the_only_writer_asks_at_the_rate_of_a_few() -> None:
    """Whatever their number, half of what may repeat by themselves ask within the longest interval: the oldest first."""
    few, limit_s = 16, Bench().handler.settings.retry_limit_s
    for chunks in (2 * few, 10 * few):
        bench = crowd(chunks, few)
        turned_away(bench, limit_s)
        asked = [turned_away(bench, limit_s) for _ in range(chunks // few)]
        assert all(abs(len(once) - few // 2) <= 2 for once in asked)
        assert sum(map(len, asked)) - few <= len({chunk for once in asked for chunk in once}) <= chunks


def test_crowd_beside_other_writers_does_not_wait_for_long() -> None:
    """Others may hold places that wait for ours: each of the crowd has its turn within four of the longest intervals."""
    few, chunks = 4, 100
    bench = Bench(page_size=100, max_busy_at_once=few, layout=rank_layout(1, 4, heads=4))
    bench.connect(layout=rank_layout(0, 2, heads=4))
    bench.submit("r", chunks * CHUNK_TOKENS)
    for chunk in range(chunks):
        bench.respond("d0", "r", chunk, GrantStatus.BUSY)
    assert {*turned_away(bench, 4 * bench.handler.settings.retry_limit_s)} == {*range(chunks)}


def crowd(chunks: int, few: int) -> Bench:
    """A room all of whose chunks were turned away, ``few`` being no crowd."""
    bench = Bench(page_size=100, max_busy_at_once=few)
    bench.connect()
    bench.submit("r", chunks * CHUNK_TOKENS)
    for chunk in range(chunks):
        bench.respond("d0", "r", chunk, GrantStatus.BUSY)
    return bench


def test_turns_go_on_until_nobody_is_turned_away() -> None:
    """A crowd that has become small is asked for as before, and the last one, too; without any, nothing is due."""
    bench = crowd(5, 2)
    for chunk in range(4):
        bench.respond("d0", "r", chunk, GrantStatus.PENDING)
    due = TimerKey(TimerKind.TURN, "d0")
    assert due in bench.handler.state.timers
    assert 4 in [message.chunk for message in sent(bench.run(BUNDLE_S), StagingReq)]
    bench.respond("d0", "r", 4, GrantStatus.PENDING)
    bench.run(BUNDLE_S)
    assert due not in bench.handler.state.timers


def test_lost_request_of_a_turn_is_repeated() -> None:
    """One that asked in its turn and hears nothing asks again by itself, like any other."""
    bench = crowd(40, 1)
    asked = {message.chunk for message in sent(bench.run(BUNDLE_S), StagingReq)}
    assert 1 <= len(asked) <= 2
    assert asked <= {message.chunk for message in sent(bench.run(1.0), StagingReq)}


@pytest.mark.parametrize("status", [GrantStatus.PENDING, GrantStatus.GRANTED])
def test_old_answers_end_no_repeats(status: GrantStatus) -> None:
    """One that waits for its turn and hears an older answer, or a grant that is over, goes on asking."""
    bench = Bench(max_busy_at_once=1)
    bench.connect()
    bench.submit("r", 3 * CHUNK_TOKENS)
    (write,) = of_type(bench.grant("d0", "r", 0, granted(1)), WriteChunk)
    bench.finish(write)
    bench.judge("d0", "r", 0, 1, DoneStatus.STALE)
    for chunk in (1, 2, 0):
        bench.respond("d0", "r", chunk, GrantStatus.BUSY)
    if status is GrantStatus.GRANTED:
        bench.grant("d0", "r", 0, granted(1))
    else:
        bench.respond("d0", "r", 0, status)
    assert 0 in [message.chunk for message in sent(bench.run(3.0), StagingReq)]


def test_turns_end_with_the_session() -> None:
    """A new session asks for everything at once, and nobody takes turns in it before D turns some away."""
    bench = crowd(5, 2)
    bench.hear("d0", Error(bench.sessions["d0"], ErrorCode.UNKNOWN_SESSION, "who?", "STAGING_REQ"))
    assert TimerKey(TimerKind.TURN, "d0") not in bench.handler.state.timers


def test_long_waits_of_many_chunks_end_together() -> None:
    """Chunks that were asked for at different times repeat in bundles once they wait for long, none after its interval."""
    bench = Bench(page_size=100)
    bench.connect()
    for chunk in range(50):
        bench.submit("r", CHUNK_TOKENS, start=chunk * CHUNK_TOKENS)
        bench.run(0.013)
    bench.run(10.0)
    limit_s, moments, heard = bench.handler.settings.retry_limit_s, set(), set()
    until = bench.now + limit_s
    while bench.now < until:
        requests = sent(bench.run(0.01), StagingReq)
        heard |= {request.chunk for request in requests}
        moments |= {round(bench.now, 2)} if requests else set()
    assert heard == set(range(50))
    assert len(moments) <= limit_s / BUNDLE_S + 1


def test_busy_chunks_follow_one_that_found_a_place() -> None:
    """Whatever the crowd, an answer other than busy lets the next one ask at once."""
    bench = Bench()
    bench.connect()
    bench.submit("r", 3 * CHUNK_TOKENS)
    for chunk in range(3):
        bench.respond("d0", "r", chunk, GrantStatus.BUSY)
    assert [message.chunk for message in sent(bench.respond("d0", "r", 2, GrantStatus.PENDING), StagingReq)] == [0]
    assert not sent(bench.respond("d0", "r", 0, GrantStatus.BUSY), StagingReq)
