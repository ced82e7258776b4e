"""Early ends: aborts from both sides, what proof frees and what does not, and what a fenced session may still say."""

import pytest

from decode_service.outputs import GrantQuarantined, SessionClosed, SessionFenced
from decode_service.rooms import RoomRefused
from protocol.messages import Abort, AbortAck, Error, ErrorCode, GrantSlice, GrantStatus, StagingRsp
from protocol.watermark import is_watermark_ready
from tests.unit.decode_service.driver import CHUNK_TOKENS, Driver, ends, found, messages, only, verdicts


def writing_room(**changes: object) -> tuple[Driver, str, str, dict[str, GrantSlice]]:
    """A room whose chunk two writers are writing now."""
    driver = Driver(2, **changes)  # type: ignore[arg-type]
    a, b = driver.join(0), driver.join(1)
    driver.register("r")
    return driver, a, b, driver.grant([a, b], "r")


class TestAbortByDecode:
    """The engine, a deadline or a fault ends a room: its writers are told until they answer."""

    def test_every_writer_is_told_and_the_engine_hears_at_once(self) -> None:
        """Each writer gets an ``ABORT`` of its own; no copy of ours runs, so the room is over for the engine."""
        driver, a, b, _ = writing_room()
        outputs = driver.do(driver.handler.abort_room("r", "enough", driver.now))
        aborts = messages(outputs, Abort)
        assert [abort.session for abort in aborts] == [a, b]
        assert len({abort.abort_id for abort in aborts}) == 2
        assert aborts[0].reason == "aborted: enough"
        assert ends(outputs) == [("r", "aborted")]

    def test_region_waits_for_every_ack(self) -> None:
        """A region that two were told about is free when both have said that they do not write."""
        driver, _, _, _ = writing_room()
        first, second = messages(driver.do(driver.handler.abort_room("r", "enough", driver.now)), Abort)
        driver.ack(first)
        driver.ack(first)
        assert driver.live_grants() == [("r", "closed")]
        driver.ack(second)
        assert driver.live_grants() == []

    def test_repeated_until_acked(self) -> None:
        """An unanswered ``ABORT`` comes again with the same id; after the ack it stops."""
        driver, a, b, _ = writing_room()
        first = driver.do(driver.handler.abort_room("r", "enough", driver.now))
        ids = {abort.session: abort.abort_id for abort in messages(first, Abort)}
        repeats = messages(driver.wait(1.0, alive=[a, b]), Abort)
        assert len(repeats) >= 4
        assert {abort.session: abort.abort_id for abort in repeats} == ids
        for abort in messages(first, Abort):
            driver.ack(abort)
        assert messages(driver.wait(10, alive=[a, b]), Abort) == []

    def test_not_repeated_for_ever(self) -> None:
        """Once the room is forgotten and nothing hangs on the answer, a peer that never acks costs nothing more."""
        driver = Driver(2, room_deadline_s=5.0)
        a, b = driver.join(0), driver.join(1)
        driver.register("r")
        driver.ask(a, "r")
        driver.do(driver.handler.abort_room("r", "enough", driver.now))
        assert messages(driver.wait(4, alive=[a, b]), Abort)
        driver.wait(4, alive=[a, b])
        assert messages(driver.wait(20, alive=[a, b]), Abort) == []

    @pytest.mark.parametrize("shift", [-1, 1, 10**6])
    def test_ack_of_another_abort_is_no_proof(self, shift: int) -> None:
        """Only the current ``abort_id`` of that session and room frees anything."""
        driver, _, _, _ = writing_room()
        for abort in messages(driver.do(driver.handler.abort_room("r", "enough", driver.now)), Abort):
            driver.hear(AbortAck(abort.session, "r", abort.abort_id + shift * 2))
            driver.hear(AbortAck(abort.session, "s", abort.abort_id))
        assert driver.live_grants() == [("r", "closed")]
        assert driver.count("abort_acks_ignored") == 4

    def test_ack_of_an_earlier_room_of_the_same_id_is_no_proof(self) -> None:
        """A room id is used again once its abort was acknowledged; a late repeat of that ack says nothing of the new room."""
        driver = Driver(1, room_deadline_s=5.0)
        session = driver.join()
        driver.register("r")
        old = only(driver.do(driver.handler.abort_room("r", "one", driver.now)), Abort)
        driver.wait(6, alive=[session])
        with pytest.raises(RoomRefused, match="still being aborted"):
            driver.register("r")
        driver.ack(old)
        driver.register("r")
        driver.grant([session], "r")
        new = only(driver.do(driver.handler.abort_room("r", "two", driver.now)), Abort)
        driver.ack(old)
        assert driver.live_grants() == [("r", "closed")]
        driver.ack(new)
        assert driver.live_grants() == []

    def test_before_any_request_the_group_is_told(self) -> None:
        """A room that nobody has asked for yet is aborted at every writer of its group."""
        driver = Driver(2)
        a, b = driver.join(0), driver.join(1)
        driver.join(0, group="h")
        driver.register("r")
        outputs = driver.do(driver.handler.abort_room("r", "enough", driver.now))
        assert [abort.session for abort in messages(outputs, Abort)] == [a, b]

    def test_failure_is_sticky(self) -> None:
        """The first reason stays; a second abort changes nothing."""
        driver, _, _, _ = writing_room()
        driver.do(driver.handler.abort_room("r", "one", driver.now))
        assert driver.do(driver.handler.abort_room("r", "two", driver.now)) == ()
        end = driver.handler.room_end("r")
        assert end is not None
        assert (end.code, end.message) == ("aborted", "one")


class TestAbortByPrefill:
    """A prefill that gives a room up has stopped its own writes first."""

    def test_acked_and_failed_for_all(self) -> None:
        """The sender is acked and proven quiet; the other writer is told; the region waits for that one."""
        driver, a, b, granted = writing_room()
        outputs = driver.abort(a, "r", abort_id=9)
        assert only(outputs, AbortAck) == AbortAck(a, "r", 9)
        assert ends(outputs) == [("r", "aborted_by_prefill")]
        assert b in {abort.session for abort in messages(outputs, Abort)}
        assert driver.live_grants() == [("r", "closed")]
        driver.ready(b, "r", granted[b])
        assert driver.live_grants() == []

    def test_repeats_are_acked_again(self) -> None:
        """The ack may have been lost: each repeat gets one, also when the room is over or was never known."""
        driver, a, _, _ = writing_room()
        for room in ("r", "r", "unheard-of"):
            assert only(driver.abort(a, room), AbortAck).room == room

    def test_of_a_room_that_comes_later(self) -> None:
        """A room that its prefill gave up before it was registered fails at once, if that was lately."""
        driver = Driver(1)
        session = driver.join()
        driver.abort(session, "early")
        driver.abort(session, "long-ago")
        assert ends(driver.register("early")) == [("early", "aborted_by_prefill")]
        driver.wait(6, alive=[session])
        assert ends(driver.register("long-ago")) == []

    def test_of_another_groups_room(self) -> None:
        """Another group's word about a room id is acked and touches no room of this group, live or to come."""
        driver, a, b, granted = writing_room()
        stranger = driver.join(0, group="h")
        assert ends(driver.abort(stranger, "r")) == []
        driver.abort(stranger, "later")
        assert ends(driver.register("later")) == []
        assert ends(driver.scattered(driver.write(granted, "r"))) == [("r", "")]
        assert a != b


def test_slots_of_an_aborted_room_are_released() -> None:
    """A room aborted before its bytes came pins nothing once it is proven quiet: later rooms go on."""
    driver = Driver(2)
    a, b = driver.join(0), driver.join(1)
    driver.register("r1", 2)
    driver.register("r2", 2)
    driver.register("r3", 2)
    driver.grant([a, b], "r1")
    second = driver.grant([a, b], "r2")
    for abort in messages(driver.do(driver.handler.abort_room("r1", "enough", driver.now)), Abort):
        driver.ack(abort)
    driver.scattered(driver.write(second, "r2"))
    third = driver.grant([a, b], "r3")
    assert is_watermark_ready(driver.watermark, third[a].round, third[a].end)


def test_region_being_written_is_not_handed_on() -> None:
    """An abort while writers write: the next grant over those bytes is not ready before both acks."""
    driver, a, b, _ = writing_room()
    aborts = messages(driver.do(driver.handler.abort_room("r", "enough", driver.now)), Abort)
    driver.register("s")
    following = driver.grant([a, b], "s")[a]
    for abort in aborts:
        assert not is_watermark_ready(driver.watermark, following.round, following.end)
        driver.ack(abort)
    assert is_watermark_ready(driver.watermark, following.round, following.end)


class TestFenced:
    """A session that fell silent may still write: its grants stay until there is proof."""

    def fenced(self, **changes: object) -> tuple[Driver, str, str, dict[str, GrantSlice]]:
        """A was silent for too long while both were writing."""
        driver, a, b, granted = writing_room(**changes)
        driver.wait(13, alive=[b])
        assert driver.count("sessions_fenced") == 1
        return driver, a, b, granted

    def test_nothing_is_freed_on_a_guess(self) -> None:
        """The other writer's word, the room's end and any time do not free what A may still write."""
        driver, a, b, granted = self.fenced()
        driver.ready(b, "r", granted[b])
        driver.do(driver.handler.abort_room("r", "enough", driver.now))
        assert driver.watermark == (0, 0)
        assert ("r", "closed") in driver.live_grants()
        assert driver.handler.state.sessions.get(a) is not None

    def test_closed_grant_answers_busy_and_takes_no_session(self) -> None:
        """Nobody joins a closed grant: not the other writer, nor A's next session."""
        driver, _, b, _ = self.fenced()
        again = driver.join(0)
        for session in (b, again):
            answer = driver.ask(session, "r")
            assert answer is not None
            assert answer.status is GrantStatus.BUSY

    @pytest.mark.parametrize("proof", ["ready", "unsubscribe", "stopped", "quiet", "abort"])
    def test_each_proof_frees(self, proof: str) -> None:
        """A's word, its departure, its next session's claim, its dead process, or its abort: each frees once B is quiet."""
        driver, a, b, granted = self.fenced()
        driver.ready(b, "r", granted[b])
        assert driver.live_grants() == [("r", "closed")]
        if proof == "ready":
            outputs = driver.ready(a, "r", granted[a])
        elif proof == "unsubscribe":
            outputs = driver.leave(a)
        elif proof == "stopped":
            outputs = driver.hear(driver.subscribe_message(0, stopped=a), b"again")
        elif proof == "quiet":
            outputs = driver.quiet(a)
        else:
            outputs = driver.abort(a, "r")
        assert driver.live_grants() == []
        assert found(outputs, SessionClosed) == [SessionClosed(a)]
        assert driver.handler.state.sessions.get(a) is None

    def test_ack_of_a_fenced_session_is_proof(self) -> None:
        """An ``ABORT`` that went out before the fence may be answered after it."""
        driver, a, b, granted = writing_room()
        driver.ready(b, "r", granted[b])
        aborts = {abort.session: abort for abort in messages(driver.do(driver.handler.abort_room("r", "x", driver.now)), Abort)}
        driver.wait(13, alive=[b])
        assert driver.live_grants() == [("r", "closed")]
        driver.ack(aborts[a])
        assert driver.live_grants() == []

    def test_word_about_a_rejected_attempt_is_no_proof(self) -> None:
        """The repeat of an attempt that was rejected says nothing about the next one, which may run now."""
        driver, a, b, granted = writing_room()
        scatter = driver.write(granted, "r")
        driver.scattered(scatter, bad=(scatter.slices[0].layout.writer,))
        driver.wait(13, alive=[b])
        driver.ready(a, "r", granted[a], attempt=1)
        assert driver.live_grants() == [("r", "closed")]
        driver.ready(a, "r", granted[a], attempt=2)
        assert driver.live_grants() == []

    def test_word_that_was_accepted_before_the_fence_stands(self) -> None:
        """A wrote and fell silent: B completes the chunk, whatever A repeats."""
        driver, a, b, granted = writing_room()
        driver.ready(a, "r", granted[a])
        driver.wait(13, alive=[b])
        driver.ready(a, "r", granted[a])
        outputs = driver.ready(b, "r", granted[b])
        assert len(outputs) == 1
        assert driver.live_grants() == [("r", "scattering")]

    def test_speaker_is_told_that_it_is_over(self) -> None:
        """Any message but a last word is answered ``unknown_session``."""
        driver, a, _, granted = self.fenced()
        error = only(driver.ready(a, "r", granted[a]), Error)
        assert (error.session, error.code, error.in_reply_to) == (a, ErrorCode.UNKNOWN_SESSION, "ChunkReady")

    def test_request_of_a_fenced_session_grants_nothing(self) -> None:
        """What it asks for is not looked at."""
        driver, a, b, _ = self.fenced()
        driver.register("s")
        assert messages(driver.ask_all(a, "s"), StagingRsp) == []
        answer = driver.ask(b, "s")
        assert answer is not None
        assert answer.status is GrantStatus.PENDING

    def test_proof_for_one_room_frees_no_other(self) -> None:
        """An ack is about its room; the session's other grants stay."""
        driver = Driver(1, ring=1000)
        session = driver.join()
        for room in ("r", "s"):
            driver.register(room)
            driver.grant([session], room)
        abort = only(driver.do(driver.handler.abort_room("r", "x", driver.now)), Abort)
        driver.ack(abort)
        assert driver.live_grants() == [("s", "open")]


def test_stopped_of_another_life_or_prefill_is_no_proof() -> None:
    """Only the same life of the same prefill can vouch for a session; a number that somebody guessed frees nothing."""
    driver, a, b, granted = writing_room()
    driver.wait(13, alive=[b])
    driver.ready(b, "r", granted[b])
    driver.hear(driver.subscribe_message(0, group="h", stopped=a), b"other prefill")
    assert driver.live_grants() == [("r", "closed")]
    driver.hear(driver.subscribe_message(0, life=2, stopped=a), b"next life")
    assert driver.live_grants() == [("r", "closed")]
    assert driver.count("stopped_ignored") == 1


def test_departure_fails_its_rooms_and_frees_its_grants() -> None:
    """``UNSUBSCRIBE`` is the end of a life: its rooms fail, the other writers hear, its own slices are quiet."""
    driver, a, b, granted = writing_room()
    outputs = driver.leave(a)
    assert ends(outputs) == [("r", "prefill_gone")]
    assert [abort.session for abort in messages(outputs, Abort)] == [b]
    assert SessionClosed(a) in outputs
    driver.ready(b, "r", granted[b])
    assert driver.live_grants() == []


def test_rooms_of_others_are_untouched_by_a_dead_process() -> None:
    """The death of one prefill fails the rooms that it had begun; rooms of other groups and unbegun ones live."""
    driver = Driver(1, ring=1000)
    a, other = driver.join(), driver.join(group="h")
    driver.register("begun")
    driver.register("unbegun")
    driver.register("foreign", group="h")
    driver.ask(a, "begun")
    granted = driver.grant([other], "foreign")
    assert ends(driver.quiet(a, died=True)) == [("begun", "prefill_gone")]
    assert ends(driver.scattered(driver.write(granted, "foreign"))) == [("foreign", "")]
    again = driver.join(life=2)
    assert ends(driver.move([again], "unbegun")) == [("unbegun", "")]


def test_closed_plane_is_no_death() -> None:
    """A prefill that let go of the region can write no more, but its pages are there: its rooms go on in its next session."""
    driver = Driver(1)
    old = driver.join()
    driver.register("r")
    driver.grant([old], "r")
    assert ends(driver.quiet(old)) == []
    assert driver.live_grants() == []
    assert ends(driver.move([driver.join()], "r")) == [("r", "")]


def test_death_is_heard_after_the_fence() -> None:
    """A process whose session was fenced for its silence, and is then seen dead, takes its rooms along."""
    driver = Driver(1)
    session = driver.join()
    driver.register("r")
    driver.grant([session], "r")
    driver.wait(13)
    assert ends(driver.quiet(session, died=True)) == [("r", "prefill_gone")]
    assert driver.live_grants() == []


def test_scatter_that_has_begun_ends_as_consumed() -> None:
    """A fenced writer does not stop a scatter of bytes that are all here."""
    driver, _, b, granted = writing_room()
    scatter = driver.write(granted, "r")
    driver.wait(13, alive=[b])
    outputs = driver.scattered(scatter)
    assert ends(outputs) == [("r", "")]
    assert verdicts(outputs) == [(b, "scattered", 1, "")]


def test_chunks_of_one_room_release_one_by_one() -> None:
    """Several grants of a failed room are each freed by their own proof."""
    driver = Driver(1, ring=1000)
    session = driver.join()
    driver.register("r", 3 * CHUNK_TOKENS)
    granted = [driver.grant([session], "r", chunk)[session] for chunk in range(3)]
    driver.do(driver.handler.abort_room("r", "x", driver.now))
    for left, chunk in ((2, 1), (1, 0), (0, 2)):
        driver.ready(session, "r", granted[chunk], chunk)
        assert len(driver.live_grants()) == left


def test_who_is_fenced_and_what_pins_the_ring_is_told() -> None:
    """A silent writer is named when it is fenced, and so is the grant it pins; proof that comes at once pins nothing."""
    driver = Driver()
    a, b = driver.join(0), driver.join(1)
    driver.register("r")
    granted = driver.grant([a, b], "r")
    outputs = driver.wait(13.0, alive=[b])
    (fenced,) = found(outputs, SessionFenced)
    assert (fenced.session, fenced.prefill_id) == (a, "g-p0")
    assert "silent for" in fenced.reason
    (quarantined,) = found(outputs, GrantQuarantined)
    assert (quarantined.alloc_id, quarantined.room, quarantined.chunk) == (granted[a].alloc_id, "r", 0)
    assert quarantined.waits_for == ("g-p0", "g-p1")
    assert quarantined.reason == f"writer fenced: {fenced.reason}"


def test_grant_that_is_proven_at_once_is_no_quarantine() -> None:
    """An orderly departure is proof in itself: the grant goes with the session and nothing is pinned."""
    driver = Driver(prefill_tp=1)
    session = driver.join()
    driver.register("r")
    driver.grant([session], "r")
    outputs = driver.leave(session)
    assert found(outputs, SessionFenced)
    assert not found(outputs, GrantQuarantined)
    assert driver.live_grants() == []
