"""Progress from the engine: cut on the grid, and refused without a trace if it cannot be."""

import pytest

from prefill_service.outputs import Connect, Output
from prefill_service.rooms import RoomRefused
from protocol.layout import PageRun
from protocol.messages import DoneStatus, StagingReq
from tests.unit.prefill_service.bench import PAGES, Bench, of_type, sent


def connected(**changes: object) -> Bench:
    """A bench with one session."""
    bench = Bench(**changes)
    bench.connect()
    return bench


def asked(outputs: tuple[Output, ...]) -> list[tuple[int, int, int]]:
    """Chunk, first token and tokens of every request."""
    return [(request.chunk, request.token_start, request.num_tokens) for request in sent(outputs, StagingReq)]


def test_one_portion_over_several_slots_is_split() -> None:
    """Progress of two and a half grid chunks is two chunks, never one that crosses an edge; the rest follows with the end."""
    bench = connected()
    assert asked(bench.submit("r", 25)) == [(0, 0, 10), (1, 10, 10)]
    assert asked(bench.handler.finish_room("r", bench.now)) == [(2, 20, 5)]


def test_portions_off_the_grid_are_floored() -> None:
    """Progress 7, 17, 20 of 20: nothing, chunk 0, chunk 1; never two offers of one chunk."""
    bench = connected()
    assert asked(bench.submit("r", 7)) == []
    assert asked(bench.submit("r", 10, start=7)) == [(0, 0, 10)]
    assert asked(bench.submit("r", 3, start=17)) == [(1, 10, 10)]
    assert asked(bench.handler.finish_room("r", bench.now)) == []


def test_cached_prefix_is_expressed_by_the_page_list() -> None:
    """The room's token 0 may lie in the middle of its first page; what the pages hold is counted from there."""
    bench = connected()
    bench.submit("r", 10, source=PageRun((4, 8, 15), first_token=3))
    with pytest.raises(RoomRefused, match="hold 12 tokens of the room, expected at least 13"):
        bench.submit("r", 3, start=10, source=PageRun((4, 8, 15), first_token=3))
    bench.submit("r", 2, start=10, source=PageRun((4, 8, 15), first_token=3))


@pytest.mark.parametrize(
    ("start", "tokens", "source", "words"),
    [
        (5, 5, PAGES, "token_start: expected 0"),
        (0, 0, PAGES, "num_tokens: expected at least 1"),
        (0, -4, PAGES, "num_tokens: expected at least 1"),
        (0, 11, PageRun((1, 2)), "hold 10 tokens"),
        (0, 5, PageRun((1, -2)), "negative"),
        (0, 5, PageRun((1, 2), -1), "negative"),
    ],
)
def test_bad_progress_is_refused_without_a_trace(start: int, tokens: int, source: PageRun, words: str) -> None:
    """The call says what was expected, no room and no peer comes of it, and the right call still works."""
    bench = Bench()
    with pytest.raises(RoomRefused, match=words) as refused:
        bench.submit("r", tokens, start=start, source=source)
    assert refused.value.code == "invalid"
    assert not bench.handler.state.peers
    assert bench.is_idle()
    assert of_type(bench.submit("r", 5), Connect)


@pytest.mark.parametrize("decode", [(), ("d0", "d0")])
def test_targets_must_be_named_once(decode: tuple[str, ...]) -> None:
    """A room goes somewhere, and to each place once."""
    with pytest.raises(RoomRefused, match="decode"):
        Bench().submit("r", 5, decode=decode)


@pytest.mark.parametrize("room", ["", "x" * 129, "räume", "a\nb"])
def test_room_ids_must_travel(room: str) -> None:
    """An id that does not fit the wire is refused here, not by D."""
    with pytest.raises(RoomRefused, match="printable ASCII"):
        Bench().submit(room, 5)


def test_targets_stay_what_they_were() -> None:
    """Later portions name the same endpoints, in any order."""
    bench = Bench()
    bench.submit("r", 5, decode=("d0", "d1"))
    bench.submit("r", 5, start=5, decode=("d1", "d0"))
    with pytest.raises(RoomRefused, match="the room began with"):
        bench.submit("r", 5, start=10, decode=("d0",))


def test_nothing_after_the_end() -> None:
    """A finished room takes no more tokens, nor does its id while it is remembered; finishing twice is harmless."""
    bench = connected()
    bench.written()
    for _ in range(2):
        with pytest.raises(RoomRefused) as refused:
            bench.submit("r", 5, start=10)
        assert refused.value.code == "room_over"
        assert bench.handler.finish_room("r", bench.now) == ()
        bench.judge("d0", "r", 0, 1, DoneStatus.SCATTERED)
    bench.run(301.0)
    bench.submit("r", 5)


def test_failed_room_says_why_it_takes_no_more() -> None:
    """Submitting to or finishing a failed room is refused with the failure, while it winds down and afterwards."""
    bench = connected()
    write = bench.writing()
    bench.handler.abort_room("r", bench.now, "user gone")
    for _ in range(2):
        with pytest.raises(RoomRefused, match="user gone") as refused:
            bench.submit("r", 5, start=10)
        assert refused.value.code == "aborted"
        with pytest.raises(RoomRefused, match="user gone"):
            bench.handler.finish_room("r", bench.now)
        if bench.handler.state.writes.running:
            bench.finish(write)


def test_unknown_room_cannot_be_finished() -> None:
    """There is nothing to finish."""
    with pytest.raises(RoomRefused) as refused:
        Bench().handler.finish_room("r", 200.0)
    assert refused.value.code == "unknown_room"


@pytest.mark.parametrize("limit", ["max_rooms", "max_tombstones", "max_peers"])
def test_full_table_answers_busy_with_the_limit(limit: str) -> None:
    """The one room too many is refused with the limit, and the others are not disturbed."""
    bench = Bench(**{limit: 2})
    for number in range(2):
        bench.submit(f"r{number}", 5, decode=(f"d{number}",))
    with pytest.raises(RoomRefused) as refused:
        bench.submit("r2", 5, decode=("d2",))
    assert (refused.value.code, refused.value.limit) == ("busy", 2)
    bench.submit("r0", 5, start=5, decode=("d0",))


def test_tombstones_count_until_they_expire() -> None:
    """Rooms that are over hold their ids; when their time is over there is room again."""
    bench = Bench(max_tombstones=1, room_tombstone_s=50.0)
    bench.connect()
    bench.submit("r0", 5)
    bench.handler.abort_room("r0", bench.now)
    with pytest.raises(RoomRefused, match="remembered"):
        bench.submit("r1", 5)
    bench.run(51.0)
    bench.submit("r1", 5)


def test_room_has_a_bounded_number_of_chunks() -> None:
    """A room longer than the limit is refused with it."""
    bench = Bench(max_chunks_per_room=2)
    bench.submit("r", 20)
    with pytest.raises(RoomRefused) as refused:
        bench.submit("r", 1, start=20)
    assert (refused.value.code, refused.value.limit) == ("too_long", 2)


def test_leaving_peer_takes_no_new_room() -> None:
    """While the last write to a removed peer runs, nothing new may go there."""
    bench = connected()
    bench.writing()
    bench.handler.remove_peer("d0", bench.now)
    with pytest.raises(RoomRefused) as refused:
        bench.submit("other", 5)
    assert refused.value.code == "peer_leaving"
