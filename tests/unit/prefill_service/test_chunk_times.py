"""Where a chunk's time went."""

from prefill_service.chunk_times import ChunkKey, ChunkTimes

KEY = ChunkKey("room", "peer", 0)


def test_each_stage_is_measured_from_the_one_before() -> None:
    """The four stages add up to the whole, in milliseconds; repeats of a request or a grant change nothing."""
    times = ChunkTimes()
    times.asked(KEY, 1.0)
    times.asked(KEY, 1.5)
    times.granted(KEY, 2.0)
    times.granted(KEY, 2.5)
    times.started(KEY, 4.0)
    times.written(KEY, 7.0)
    line = times.done(KEY, 11.0)
    assert line == {"requested_ms": 1000.0, "gated_ms": 2000.0, "written_ms": 3000.0, "scattered_ms": 4000.0}
    assert times.done(KEY, 12.0) is None
    assert len(times) == 0


def test_a_chunk_says_what_it_waits_for() -> None:
    """After every stage the next one is named; a new write goes back to it."""
    times = ChunkTimes()
    times.asked(KEY, 1.0)
    seen = []
    for step in (times.granted, times.started, times.written, times.started):
        oldest = times.oldest()
        assert oldest is not None
        seen.append(oldest[1].waits_for)
        step(KEY, 2.0)
    oldest = times.oldest()
    assert oldest is not None
    assert [*seen, oldest[1].waits_for] == ["grant", "gate", "write", "scatter", "write"]


def test_a_room_that_is_over_leaves_nothing() -> None:
    """Chunks of a failed room are forgotten with it, those of others stay; unknown chunks change nothing."""
    times = ChunkTimes()
    other = ChunkKey("other", "peer", 0)
    for key in (KEY, KEY._replace(chunk=1), other):
        times.asked(key, 1.0)
    times.forget("room")
    times.forget("room")
    times.granted(KEY, 2.0)
    times.written(KEY, 2.0)
    oldest = times.oldest()
    assert oldest is not None
    assert oldest[0] == other
    assert times.done(other, 3.0) == {"requested_ms": None, "gated_ms": None, "written_ms": None, "scattered_ms": None}
    assert times.oldest() is None
