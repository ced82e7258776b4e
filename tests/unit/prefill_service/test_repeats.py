"""What P says about a chunk is repeated until it is answered, on the channel where it belongs."""

import pytest

from prefill_service.outputs import Channel, RoomFailed, Send, WriteChunk
from prefill_service.repeats import BUNDLE_S, BUSY_AT_ONCE
from protocol.messages import ChunkReady, DoneStatus, GrantStatus, StagingReq, WriteFailed
from tests.unit.prefill_service.bench import CHUNK_TOKENS, PAGES, Bench, granted, of_type, sent


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


def test_crowd_of_busy_chunks_shares_the_rate_of_a_few() -> None:
    """One of three times as many as repeat at the usual pace waits up to three of the longest intervals, and no longer."""
    bench = Bench(page_size=100)
    bench.connect()
    chunks = 3 * BUSY_AT_ONCE
    bench.submit("r", chunks * CHUNK_TOKENS)
    for chunk in range(chunks):
        bench.respond("d0", "r", chunk, GrantStatus.BUSY)
    limit_s = bench.handler.settings.retry_limit_s
    early = [message.chunk for message in sent(bench.run(3 * limit_s * 0.79), StagingReq)]
    assert 0 in early
    assert chunks - 1 not in early
    assert chunks - 1 in [message.chunk for message in sent(bench.run(3 * limit_s * 0.21), StagingReq)]


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
