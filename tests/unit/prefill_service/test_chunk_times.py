"""Where a chunk's time went."""

from prefill_service.chunk_times import ChunkKey, ChunkTimes

KEY = ChunkKey("room", "peer", 0)


def test_each_moment_is_kept_once() -> None:
    """The five moments of a chunk's way; repeats of a request or a grant change nothing."""
    times = ChunkTimes()
    times.asked(KEY, 1.0)
    times.asked(KEY, 1.5)
    times.granted(KEY, 2.0)
    times.granted(KEY, 2.5)
    times.started(KEY, 4.0)
    times.written(KEY, 7.0)
    assert times.done(KEY, 11.0) == (1.0, 2.0, 4.0, 7.0, 11.0)
    assert times.done(KEY, 12.0) is None
    assert len(times) == 0


def test_a_new_write_begins_its_stages_anew() -> None:
    """A write that was sent back is not the one whose bytes arrived."""
    times = ChunkTimes()
    times.asked(KEY, 1.0)
    times.granted(KEY, 2.0)
    times.started(KEY, 3.0)
    times.written(KEY, 4.0)
    times.started(KEY, 5.0)
    assert times.done(KEY, 6.0) == (1.0, 2.0, 5.0, None, 6.0)


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
    assert len(times) == 1
    assert times.done(other, 3.0) == (1.0, None, None, None, 3.0)
