"""``CHUNK_READY`` and what follows: fan-in of distinct writers, verdicts, rewrites, the scatter, and failed writes."""

from dataclasses import replace

import pytest

from decode_service.outputs import ReadySlice, ScatterChunk
from protocol.layout import PageRun, WriterKey
from protocol.messages import Abort, GrantStatus, WatermarkUpdate, WriteFailed
from tests.unit.decode_service.driver import CHUNK_TOKENS, SUM, Driver, ends, found, messages, only, rank, verdicts

W0, W1 = WriterKey(0, 0), WriterKey(1, 0)


def granted_room(**changes: object) -> tuple[Driver, str, str]:
    """A room of one chunk that two writers may write."""
    driver = Driver(2, **changes)  # type: ignore[arg-type]
    sessions = driver.join(0), driver.join(1)
    driver.register("r")
    return driver, *sessions


def test_chunk_is_scattered_after_its_distinct_writers() -> None:
    """One scatter, with every slice at its place, when the last writer has spoken; then the region is free and all hear it."""
    driver, a, b = granted_room()
    granted = driver.grant([a, b], "r")
    assert driver.ready(a, "r", granted[a]) == ()
    (scatter,) = driver.ready(b, "r", granted[b])
    assert isinstance(scatter, ScatterChunk)
    assert (scatter.room, scatter.chunk, scatter.token_start, scatter.num_tokens) == ("r", 0, 0, 4)
    assert scatter.destination == PageRun((0, 1, 2))
    assert [(part.layout.writer, part.offset, part.num_bytes, part.checksum) for part in scatter.slices] == [
        (W0, 0, 40, SUM),
        (W1, 40, 40, SUM),
    ]
    assert isinstance(scatter.slices[0], ReadySlice)
    assert driver.watermark == (0, 0)
    outputs = driver.scattered(scatter)
    assert verdicts(outputs) == [(a, "scattered", 1, ""), (b, "scattered", 1, "")]
    assert ends(outputs) == [("r", "")]
    assert driver.watermark == (1, 0)
    assert {m.session: m.watermark for m in messages(driver.tick(), WatermarkUpdate)} == {a: (1, 0), b: (1, 0)}


def test_one_decode_rank_of_two_has_one_writer() -> None:
    """Prefill TP 1 to decode TP 2: one word is enough."""
    driver = Driver(1, rank(2, 1))
    session = driver.join()
    driver.register("r")
    assert ends(driver.move([session], "r")) == [("r", "")]


def test_the_same_writer_twice_is_one_writer() -> None:
    """Two words of writer 0 do not complete a chunk of two writers; then writer 1's does, once."""
    driver, a, b = granted_room()
    granted = driver.grant([a, b], "r")
    assert [found(driver.ready(a, "r", granted[a]), ScatterChunk) for _ in range(2)] == [[], []]
    assert len(found(driver.ready(b, "r", granted[b]), ScatterChunk)) == 1
    assert found(driver.ready(b, "r", granted[b]), ScatterChunk) == []


def test_repeats_are_answered_from_the_record() -> None:
    """A word repeated because its verdict was lost gets that verdict, before and after the room is over."""
    driver, a, b = granted_room()
    driver.register("s", 2 * CHUNK_TOKENS)
    granted = driver.grant([a, b], "s")
    scatter = driver.write(granted, "s")
    assert verdicts(driver.ready(a, "s", granted[a])) == []
    driver.scattered(scatter)
    assert verdicts(driver.ready(a, "s", granted[a])) == [(a, "scattered", 1, "")]
    driver.move([a, b], "s", 1)
    assert verdicts(driver.ready(a, "s", granted[a])) == [(a, "scattered", 1, "")]


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"alloc_id": 99}, "stale"),
        ({"alloc_id": 0}, "stale"),
        ({"room": "nobody"}, "stale"),
        ({"chunk": 7}, "stale"),
        ({"chunk": 10**9}, "stale"),
    ],
)
def test_word_about_another_grant_is_stale(change: dict[str, object], status: str) -> None:
    """A word must name its own grant, room and chunk; any other is answered and changes nothing."""
    driver, a, b = granted_room()
    granted = driver.grant([a, b], "r")
    outputs = driver.hear(replace(driver.ready_message(a, "r", granted[a]), **change))  # type: ignore[arg-type]
    assert [verdict[1] for verdict in verdicts(outputs)] == [status]
    driver.write(granted, "r")


def test_negative_chunk_is_no_index() -> None:
    """A chunk of -1 reads nothing from the end of the room's record, although the codec never lets one pass."""
    driver, a, b = granted_room()
    driver.register("s", 2 * CHUNK_TOKENS)
    granted = driver.grant([a, b], "s", 1)
    driver.scattered(driver.write(granted, "s", 1))
    outputs = driver.handler.receive(
        b"x", replace(driver.ready_message(a, "s", granted[a], 1), chunk=-1, alloc_id=77), driver.now
    )
    assert [verdict[1] for verdict in verdicts(outputs)] == ["stale"]


def test_one_writer_cannot_speak_for_another() -> None:
    """A word of session A is about A's slice, even if it names B's size."""
    driver, a, b = granted_room()
    granted = driver.grant([a, b], "r")
    driver.ready(a, "r", granted[b])
    assert found(driver.ready(a, "r", granted[b]), ScatterChunk) == []


class TestRejected:
    """Bad slices are written again by their own writer, in the same grant, as the next attempt."""

    def test_bad_checksum_is_written_again(self) -> None:
        """Only the bad writer hears ``rejected``; its next attempt completes the chunk with the good one's first."""
        driver, a, b = granted_room()
        granted = driver.grant([a, b], "r")
        outputs = driver.scattered(driver.write(granted, "r"), bad=(W1,))
        assert verdicts(outputs) == [(b, "rejected", 1, "checksum")]
        assert driver.live_grants() == [("r", "open")]
        assert verdicts(driver.ready(a, "r", granted[a])) == []
        (scatter,) = found(driver.ready(b, "r", granted[b], attempt=2), ScatterChunk)
        assert [part.layout.writer for part in scatter.slices] == [W0, W1]
        assert ends(driver.scattered(scatter)) == [("r", "")]

    def test_rejection_is_repeated_for_the_same_attempt(self) -> None:
        """A repeat of a rejected word is rejected again; it never passes for the next attempt."""
        driver, a, b = granted_room()
        granted = driver.grant([a, b], "r")
        driver.scattered(driver.write(granted, "r"), bad=(W1,))
        assert verdicts(driver.ready(b, "r", granted[b])) == [(b, "rejected", 1, "checksum")]
        assert found(driver.ready(b, "r", granted[b]), ScatterChunk) == []

    def test_an_attempt_that_was_never_asked_for_is_ignored(self) -> None:
        """Attempt 3 before attempt 1 or 2 is nobody's word."""
        driver, a, b = granted_room()
        granted = driver.grant([a, b], "r")
        driver.ready(a, "r", granted[a])
        assert driver.ready(b, "r", granted[b], attempt=3) == ()
        assert driver.count("ready_ignored_attempt") == 1
        assert len(found(driver.ready(b, "r", granted[b], attempt=1), ScatterChunk)) == 1

    def test_lower_attempt_after_acceptance_changes_nothing(self) -> None:
        """The late repeat of attempt 1 does not withdraw the accepted attempt 2."""
        driver, a, b = granted_room()
        granted = driver.grant([a, b], "r")
        driver.scattered(driver.write(granted, "r"), bad=(W0, W1))
        driver.ready(b, "r", granted[b], attempt=2)
        assert verdicts(driver.ready(b, "r", granted[b], attempt=1)) == [(b, "rejected", 1, "checksum")]
        assert len(found(driver.ready(a, "r", granted[a], attempt=2), ScatterChunk)) == 1

    def test_wrong_size_is_rejected_at_once(self) -> None:
        """A word about another number of bytes is refused before the other writers have spoken."""
        driver, a, b = granted_room()
        granted = driver.grant([a, b], "r")
        outputs = driver.hear(replace(driver.ready_message(a, "r", granted[a]), num_bytes=39))
        assert verdicts(outputs) == [(a, "rejected", 1, "size")]

    def test_absent_checksum_is_rejected_where_checksums_are_on(self) -> None:
        """A session that negotiated checksums cannot leave one out."""
        driver, a, b = granted_room()
        granted = driver.grant([a, b], "r")
        outputs = driver.hear(replace(driver.ready_message(a, "r", granted[a]), checksum=None))
        assert verdicts(outputs) == [(a, "rejected", 1, "checksum_absent")]

    def test_absent_checksum_is_right_where_checksums_are_off(self) -> None:
        """A session without checksums hands ``None`` to the worker, which then verifies sizes only."""
        driver = Driver(1)
        session = driver.join(features=())
        driver.register("r")
        granted = driver.grant([session], "r")
        outputs = driver.hear(replace(driver.ready_message(session, "r", granted[session]), checksum=None))
        assert [part.checksum for part in found(outputs, ScatterChunk)[0].slices] == [None]

    def test_room_fails_after_max_rewrites(self) -> None:
        """Three rewrites are asked for; the fourth bad scatter fails the room, frees the region and leaves no trace."""
        driver = Driver(1, max_rewrites=3)
        session = driver.join()
        driver.register("r")
        granted = driver.grant([session], "r")
        for attempt in (1, 2, 3):
            (scatter,) = found(driver.ready(session, "r", granted[session], attempt=attempt), ScatterChunk)
            assert verdicts(driver.scattered(scatter, bad=(W0,))) == [(session, "rejected", attempt, "checksum")]
        (scatter,) = found(driver.ready(session, "r", granted[session], attempt=4), ScatterChunk)
        outputs = driver.scattered(scatter, bad=(W0,))
        assert ends(outputs) == [("r", "corrupt")]
        assert verdicts(outputs) == []
        assert driver.live_grants() == []
        assert verdicts(driver.ready(session, "r", granted[session], attempt=4)) == [(session, "stale", 4, "")]

    def test_room_fails_after_max_rewrites_of_size(self) -> None:
        """The same bound holds for words that are refused before any scatter, and the last word still proves quiet."""
        driver, a, b = granted_room(max_rewrites=0)
        granted = driver.grant([a, b], "r")
        outputs = driver.hear(replace(driver.ready_message(a, "r", granted[a]), num_bytes=1))
        assert ends(outputs) == [("r", "corrupt")]
        assert driver.live_grants() == [("r", "closed")]
        driver.ready(b, "r", granted[b])
        assert driver.live_grants() == []

    def test_bad_slice_of_a_fenced_writer_closes_the_grant(self) -> None:
        """Nobody is there to write it again: the region is freed, the other writer asks anew, the new session writes."""
        driver, a, b = granted_room()
        granted = driver.grant([a, b], "r")
        scatter = driver.write(granted, "r")
        driver.wait(13, alive=[a])
        assert verdicts(driver.scattered(scatter, bad=(W1,))) == []
        assert driver.live_grants() == []
        assert verdicts(driver.ready(a, "r", granted[a])) == [(a, "stale", 1, "")]
        again = driver.join(1)
        assert ends(driver.move([a, again], "r")) == [("r", "")]


class TestScatter:
    """The worker's side of it."""

    def test_scatter_that_fails_fails_the_room(self) -> None:
        """A fault of ours is no writer's: the room fails with it, the region is free, the sessions go on."""
        driver, a, b = granted_room()
        scatter = driver.write(driver.grant([a, b], "r"), "r")
        outputs = driver.do(driver.handler.scatter_failed(scatter.alloc_id, "pool vanished", driver.now))
        assert ends(outputs) == [("r", "scatter_failed")]
        assert {abort.session for abort in messages(outputs, Abort)} == {a, b}
        assert driver.live_grants() == []
        driver.register("s")
        assert ends(driver.move([a, b], "s")) == [("s", "")]

    def test_failure_of_a_failed_room_is_told_once(self) -> None:
        """A room that was aborted during its scatter keeps its first reason when the scatter fails as well."""
        driver, a, b = granted_room()
        scatter = driver.write(driver.grant([a, b], "r"), "r")
        driver.do(driver.handler.abort_room("r", "enough", driver.now))
        outputs = driver.do(driver.handler.scatter_failed(scatter.alloc_id, "pool vanished", driver.now))
        assert ends(outputs) == [("r", "aborted")]
        assert driver.live_grants() == []

    def test_late_success_after_failure_changes_nothing(self) -> None:
        """A scatter that ends well after its room failed frees the region; the engine hears of the failure only then."""
        driver, a, b = granted_room()
        scatter = driver.write(driver.grant([a, b], "r"), "r")
        assert ends(driver.do(driver.handler.abort_room("r", "enough", driver.now))) == []
        assert driver.live_grants() == [("r", "scattering")]
        outputs = driver.scattered(scatter)
        assert ends(outputs) == [("r", "aborted")]
        assert driver.live_grants() == []
        end = driver.handler.room_end("r")
        assert end is not None
        assert not end.done

    def test_room_is_done_with_its_last_chunk_only(self) -> None:
        """Chunks in any order; ``RoomDone`` once, with the last one scattered."""
        driver = Driver(1, ring=1000)
        session = driver.join()
        driver.register("r", 3 * CHUNK_TOKENS)
        scatters = [driver.write(driver.grant([session], "r", chunk), "r", chunk) for chunk in (2, 0, 1)]
        results = [ends(driver.scattered(scatter)) for scatter in reversed(scatters)]
        assert results == [[], [], [("r", "")]]


class TestWriteFailed:
    """A one-sided write that did not complete can still land: no proof frees its grant, and the chunk gets another."""

    def test_tainted_grant_is_never_freed(self) -> None:
        """Not by its own word, nor an ack, a departure or a dead process; the watermark stays where it is."""
        driver = Driver(1, ring=1000)
        session = driver.join()
        driver.register("r")
        granted = driver.grant([session], "r")
        driver.failed(session, "r", granted[session])
        driver.failed(session, "r", granted[session])
        assert driver.live_grants() == [("r", "closed")]
        driver.ready(session, "r", granted[session])
        abort = only(driver.do(driver.handler.abort_room("r", "enough", driver.now)), Abort)
        driver.ack(abort)
        driver.leave(session)
        driver.quiet(session)
        assert driver.live_grants() == [("r", "closed")]
        assert driver.watermark == (0, 0)

    def test_chunk_gets_a_new_grant(self) -> None:
        """The request that follows is granted elsewhere, and the room completes beside the tainted region."""
        driver = Driver(2, ring=1000)
        a, b = driver.join(0), driver.join(1)
        driver.register("r")
        first = driver.grant([a, b], "r")
        driver.failed(a, "r", first[a])
        second = driver.grant([a, b], "r")
        assert second[a].alloc_id != first[a].alloc_id
        assert second[a].offset == 80
        assert verdicts(driver.ready(b, "r", first[b])) == [(b, "stale", 1, "")]
        assert ends(driver.scattered(driver.write(second, "r"))) == [("r", "")]
        assert driver.live_grants() == [("r", "closed")]

    def test_later_session_of_the_same_life_may_say_so(self) -> None:
        """A prefill that lost its session before its write ended taints the grant of the old session."""
        driver = Driver(1, ring=1000)
        old = driver.join()
        driver.register("r")
        granted = driver.grant([old], "r")
        driver.wait(13)
        new = driver.join()
        driver.hear(WriteFailed(new, "r", 0, granted[old].alloc_id, 1, "lost"))
        driver.quiet(old)
        assert driver.live_grants() == [("r", "closed")]
        assert driver.grant([new], "r")[new].offset == 80

    def test_fenced_session_may_say_so(self) -> None:
        """It speaks against itself, so it is believed."""
        driver = Driver(1)
        session = driver.join()
        driver.register("r")
        granted = driver.grant([session], "r")
        driver.wait(13)
        driver.failed(session, "r", granted[session])
        driver.leave(session)
        assert driver.live_grants() == [("r", "closed")]

    def test_another_life_may_not(self) -> None:
        """A new life knows nothing of what the old one wrote."""
        driver = Driver(1, ring=1000)
        old = driver.join(life=1)
        driver.register("r")
        granted = driver.grant([old], "r")
        new = driver.join(life=2)
        driver.hear(WriteFailed(new, "r", 0, granted[old].alloc_id, 1, "lost"))
        driver.quiet(old)
        assert driver.live_grants() == []

    @pytest.mark.parametrize("change", [{"room": "s"}, {"chunk": 1}, {"alloc_id": 50}])
    def test_must_name_its_grant(self, change: dict[str, object]) -> None:
        """A report about another grant taints nothing."""
        driver = Driver(1)
        session = driver.join()
        driver.register("r")
        granted = driver.grant([session], "r")
        message = replace(WriteFailed(session, "r", 0, granted[session].alloc_id, 1, "?"), **change)  # type: ignore[arg-type]
        driver.hear(message)
        assert driver.live_grants() == [("r", "open")]

    def test_not_after_ones_own_word(self) -> None:
        """A writer whose word was accepted has no write left; the chunk goes on."""
        driver = Driver(2)
        a, b = driver.join(0), driver.join(1)
        driver.register("r")
        granted = driver.grant([a, b], "r")
        driver.ready(a, "r", granted[a])
        driver.failed(a, "r", granted[a])
        (scatter,) = found(driver.ready(b, "r", granted[b]), ScatterChunk)
        driver.failed(b, "r", granted[b])
        assert ends(driver.scattered(scatter)) == [("r", "")]
        assert driver.live_grants() == []

    def test_not_on_a_two_sided_plane(self) -> None:
        """There this side does the writing, so nothing can land late and nothing is pinned."""
        driver = Driver(1)
        session = driver.join(planes=("zmq",))
        driver.register("r")
        granted = driver.grant([session], "r")
        driver.failed(session, "r", granted[session])
        assert driver.live_grants() == [("r", "open")]


def test_word_of_a_closed_grant_proves_quiet() -> None:
    """The word that comes after the room failed is ``stale``, and frees the region."""
    driver, a, b = granted_room()
    granted = driver.grant([a, b], "r")
    driver.do(driver.handler.abort_room("r", "enough", driver.now))
    assert verdicts(driver.ready(a, "r", granted[a])) == [(a, "stale", 1, "")]
    assert verdicts(driver.ready(a, "r", granted[a])) == [(a, "stale", 1, "")]
    assert driver.live_grants() == [("r", "closed")]
    driver.ready(b, "r", granted[b])
    assert driver.live_grants() == []


def test_new_room_does_not_inherit_arrivals() -> None:
    """The words of a failed room are forgotten with it: a reused id starts from nothing."""
    driver, a, b = granted_room(room_deadline_s=5.0)
    old = driver.grant([a, b], "r")
    driver.ready(a, "r", old[a])
    aborts = messages(driver.do(driver.handler.abort_room("r", "enough", driver.now)), Abort)
    driver.ready(b, "r", old[b])
    for abort in aborts:
        driver.ack(abort)
    driver.wait(6, alive=[a, b])
    driver.register("r")
    new = driver.grant([a, b], "r")
    assert verdicts(driver.ready(a, "r", old[a])) == [(a, "stale", 1, "")]
    assert found(driver.ready(b, "r", new[b]), ScatterChunk) == []
    assert len(found(driver.ready(a, "r", new[a]), ScatterChunk)) == 1


def test_request_after_stale_gets_another_grant() -> None:
    """Writer A wrote, B fell silent: once B is proven quiet A's word is stale, and both write another grant."""
    driver, a, b = granted_room()
    old = driver.grant([a, b], "r")
    driver.ready(a, "r", old[a])
    driver.wait(13, alive=[a])
    busy = driver.ask(a, "r")
    assert busy is not None
    assert busy.status is GrantStatus.BUSY
    driver.quiet(b)
    assert verdicts(driver.ready(a, "r", old[a])) == [(a, "stale", 1, "")]
    again = driver.join(1)
    new = driver.grant([a, again], "r")
    assert new[a].alloc_id != old[a].alloc_id
    assert ends(driver.scattered(driver.write(new, "r"))) == [("r", "")]
