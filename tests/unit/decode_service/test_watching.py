"""Leases and room deadlines on this side's clock: silence, pauses of our own, queues, and the absolute cap."""

import pytest

from decode_service.outputs import ProbeQuiet
from protocol.messages import GrantStatus, Heartbeat
from protocol.watermark import START
from tests.unit.decode_service.driver import CHUNK_TOKENS, Driver, ends, found


class TestLease:
    """``lease_s + grace_s`` of silence fence a session; it is judged only after the sockets were read."""

    def test_silence_fences(self) -> None:
        """A session lives for twelve seconds after its last message, not less and not much more."""
        driver = Driver(1)
        session = driver.join()
        driver.wait(11.9)
        assert driver.handler.state.sessions.current(session) is not None
        driver.wait(0.2)
        assert driver.handler.state.sessions.current(session) is None

    @pytest.mark.parametrize("seconds", [30, 100])
    def test_heartbeats_keep_it(self, seconds: int) -> None:
        """As long as it is heard it is never fenced nor probed."""
        driver = Driver(1)
        session = driver.join()
        assert found(driver.wait(seconds, alive=[session]), ProbeQuiet) == []
        assert driver.handler.state.sessions.current(session) is not None

    def test_our_own_pause_is_not_its_silence(self) -> None:
        """This process was stopped for a minute: what the session said meanwhile is read first, so it is not fenced."""
        driver = Driver(1)
        session = driver.join()
        driver.pause(60)
        driver.hear(Heartbeat(session, 1, START))
        driver.tick()
        assert driver.handler.state.sessions.current(session) is not None

    def test_silent_session_is_probed_before_it_is_fenced(self) -> None:
        """After two missed heartbeats the plane is asked each second whether the process is dead, so death is seen early."""
        driver = Driver(1)
        session = driver.join()
        assert found(driver.wait(1.9), ProbeQuiet) == []
        assert set(found(driver.wait(3), ProbeQuiet)) == {ProbeQuiet(session)}

    def test_fenced_session_is_probed_until_quiet(self) -> None:
        """While a fenced session pins a grant the kernel is asked again and again; then no more."""
        driver = Driver(1)
        session = driver.join()
        driver.register("r")
        driver.grant([session], "r")
        driver.wait(13)
        assert len(found(driver.wait(2), ProbeQuiet)) >= 7
        driver.quiet(session)
        assert found(driver.wait(2), ProbeQuiet) == []
        assert driver.live_grants() == []

    def test_two_sided_session_is_never_probed(self) -> None:
        """Its silence needs no proof: this side does its writing."""
        driver = Driver(1)
        session = driver.join(planes=("zmq",))
        driver.register("r")
        driver.grant([session], "r")
        assert found(driver.wait(20), ProbeQuiet) == []
        assert driver.live_grants() == []

    def test_dead_process_is_one_sessions_matter(self) -> None:
        """Word that an unknown session is quiet changes nothing."""
        driver = Driver(1)
        driver.join()
        assert driver.quiet("nobody") == ()


class TestRoomDeadline:
    """A room's own time: it runs from the first request, and stops only for a queue or for our own pause."""

    def test_room_fails_at_its_deadline(self) -> None:
        """A chunk that never comes fails its room, with how far it got."""
        driver = Driver(2)
        a, b = driver.join(0), driver.join(1)
        driver.register("r", 2 * CHUNK_TOKENS, deadline_s=10)
        driver.move([a, b], "r", 0)
        driver.ask(a, "r", 1)
        assert ends(driver.wait(9, alive=[a, b])) == []
        assert ends(driver.wait(1.1, alive=[a, b])) == [("r", "deadline")]
        end = driver.handler.room_end("r")
        assert end is not None
        assert end.message.startswith("1 of 2 chunks arrived in 10.")

    def test_clock_starts_with_the_first_request(self) -> None:
        """A room that nobody has asked for is not late yet."""
        driver = Driver(1)
        session = driver.join()
        driver.register("r", deadline_s=10)
        assert ends(driver.wait(30, alive=[session])) == []
        driver.ask(session, "r")
        assert ends(driver.wait(9.9, alive=[session])) == []
        assert ends(driver.wait(1, alive=[session])) == [("r", "deadline")]

    def test_clock_stands_while_it_queues_behind_others(self) -> None:
        """A grant that the true watermark does not let pass costs its room no time; when it may be written, it does."""
        driver = Driver(1)
        session = driver.join()
        driver.register("ahead", deadline_s=100)
        driver.register("behind", deadline_s=10)
        ahead = driver.grant([session], "ahead")
        driver.grant([session], "behind")
        assert ends(driver.wait(30, alive=[session])) == []
        driver.scattered(driver.write(ahead, "ahead"))
        assert ends(driver.wait(9, alive=[session])) == []
        assert ends(driver.wait(2, alive=[session])) == [("behind", "deadline")]

    def test_clock_runs_while_a_writer_is_missing(self) -> None:
        """An absent peer never stops a clock: the request of one writer is enough to start it."""
        driver = Driver(2)
        session = driver.join(0)
        driver.register("r", deadline_s=10)
        driver.ask(session, "r")
        assert ends(driver.wait(10.6, alive=[session])) == [("r", "deadline")]

    def test_clock_runs_while_its_writer_is_fenced(self) -> None:
        """A writer that fell silent in the middle does not keep its room alive."""
        driver = Driver(1)
        session = driver.join()
        driver.register("r", deadline_s=20)
        driver.grant([session], "r")
        assert ends(driver.wait(15)) == []
        assert ends(driver.wait(6)) == [("r", "deadline")]

    def test_our_own_pause_does_not_count(self) -> None:
        """A process that was stopped does not find all its rooms late when it wakes."""
        driver = Driver(1)
        session = driver.join()
        driver.register("r", deadline_s=10)
        driver.grant([session], "r")
        driver.wait(4, alive=[session])
        driver.pause(30)
        assert ends(driver.tick()) == []
        assert driver.count("pauses") == 1
        driver.hear(Heartbeat(session, 1, START))
        assert ends(driver.wait(5, alive=[session])) == []
        assert ends(driver.wait(1, alive=[session])) == [("r", "deadline")]

    def test_absolute_cap(self) -> None:
        """No room lives longer than four deadlines, whatever stops its clock and whether or not it was asked for."""
        driver = Driver(1)
        session = driver.join()
        driver.register("pin", deadline_s=1000)
        driver.register("queued", deadline_s=10)
        driver.register("never asked", deadline_s=10)
        driver.grant([session], "pin")
        driver.grant([session], "queued")
        assert ends(driver.wait(39, alive=[session])) == []
        assert set(ends(driver.wait(2, alive=[session]))) == {("queued", "deadline"), ("never asked", "deadline")}

    def test_a_room_nobody_asked_for_names_its_group_and_the_cap(self) -> None:
        """Who is missing is told from who asked for nothing, and from a room that queued."""
        driver = Driver(1)
        session = driver.join()
        driver.register("pin", deadline_s=1000)
        driver.register("queued", deadline_s=10)
        driver.register("silent", deadline_s=10)
        driver.register("missing", group="gone", deadline_s=10)
        driver.grant([session], "pin")
        driver.grant([session], "queued")
        driver.wait(41, alive=[session])
        words = {room: end.message for room in ("queued", "silent", "missing") if (end := driver.handler.room_end(room))}
        limit = " s since it was registered (limit deadline 10 s x room_deadline_cap 4)"
        assert words["missing"].startswith("nobody of prefill group 'gone' is subscribed: 0 of 1 chunks arrived in the 40.")
        assert words["missing"].endswith(limit)
        assert words["silent"].startswith("prefill group 'g' is subscribed and asked for nothing: 0 of 1 chunks arrived")
        assert words["queued"].endswith(f"{limit}; its own clock stands at 0.0 s: it queued behind others")

    def test_late_room_frees_its_region_on_proof(self) -> None:
        """After the deadline the region waits for the writer's word, as after any abort."""
        driver = Driver(1)
        session = driver.join()
        driver.register("r", deadline_s=5)
        granted = driver.grant([session], "r")
        driver.wait(6, alive=[session])
        assert driver.live_grants() == [("r", "closed")]
        driver.ready(session, "r", granted[session])
        assert driver.live_grants() == []


def test_parked_request_of_a_lost_session_is_forgotten() -> None:
    """A deadline that outlived its reason does nothing."""
    driver = Driver(1)
    session = driver.join()
    driver.ask(session, "r")
    driver.leave(session)
    assert driver.wait(10) == ()
    again = driver.join()
    driver.register("r")
    answer = driver.ask(again, "r")
    assert answer is not None
    assert answer.status is GrantStatus.GRANTED
