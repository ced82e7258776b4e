"""The decode machine as a whole: its engine-facing verbs, and a stateful test that fires anything at it in any order."""

import pytest
from hypothesis import settings

from decode_service.allocator import Allocation
from decode_service.outputs import ScatterChunk, Send
from decode_service.rooms import RoomRefused
from protocol.codec import encode
from protocol.messages import (
    ChunkDone,
    DoneStatus,
    Goodbye,
    GrantStatus,
    WatermarkUpdate,
)
from tests.unit.decode_service.anything_goes import AnythingGoes
from tests.unit.decode_service.driver import CHUNK_TOKENS, Driver, ends, found, messages


def test_new_watermark_subscriber_receives_current_allocator_state() -> None:
    """A new subscriber is sent the current watermark at once, as exactly these frames; a known one is sent nothing."""
    driver = Driver(1)
    for _ in range(3):
        allocation = driver.allocator.assign(40)
        assert isinstance(allocation, Allocation)
        driver.allocator.free(allocation.alloc_id)
    assert driver.allocator.get_watermark() == (3, 0)
    driver.extra_subscribers.add("session-new")
    (output,) = driver.do(driver.handler.register_wm_subscriber(b"route", "session-new", driver.now))
    assert isinstance(output, Send)
    assert output.route == b"route"
    assert encode(output.message) == [b"WATERMARK", b"3", b"0", b"session-new"]
    assert driver.do(driver.handler.register_wm_subscriber(b"route", "session-new", driver.now)) == ()
    assert driver.tick() == ()


class TestRooms:
    """What the engine may ask."""

    @pytest.mark.parametrize(
        ("room", "tokens", "field"),
        [("", 4, "room"), ("x" * 129, 4, "room"), ("räume", 4, "room"), ("r", 0, "num_tokens"), ("r", 2**40, "num_tokens")],
    )
    def test_bad_registration_is_refused(self, room: str, tokens: int, field: str) -> None:
        """A room that could never be spoken about, or has no tokens, is refused with the field; nothing is kept."""
        driver = Driver(1)
        with pytest.raises(RoomRefused) as refused:
            driver.register(room, tokens)
        assert refused.value.code == "invalid"
        assert refused.value.message.startswith(field)
        assert len(driver.handler.state.rooms) == 0

    def test_id_is_refused_while_it_is_live_or_remembered(self) -> None:
        """A room id comes back only when nothing of its former life can still arrive."""
        driver = Driver(1, room_deadline_s=10.0)
        session = driver.join()
        driver.register("r")
        with pytest.raises(RoomRefused, match="room_exists"):
            driver.register("r")
        driver.move([session], "r")
        with pytest.raises(RoomRefused, match="room_closed"):
            driver.register("r")
        driver.wait(11, alive=[session])
        driver.register("r")
        assert ends(driver.move([session], "r")) == [("r", "")]

    def test_result(self) -> None:
        """The end of a room can be asked for until it is forgotten; an unknown room is an error."""
        driver = Driver(1)
        session = driver.join()
        driver.register("r")
        assert driver.handler.room_end("r") is None
        driver.move([session], "r")
        end = driver.handler.room_end("r")
        assert end is not None
        assert end.done
        for ask in (
            lambda: driver.handler.room_end("nobody"),
            lambda: driver.handler.abort_room("nobody", "x", driver.now),
        ):
            with pytest.raises(RoomRefused, match="unknown_room"):
                ask()

    def test_success_is_final(self) -> None:
        """An abort that comes after the last chunk changes nothing."""
        driver = Driver(1)
        session = driver.join()
        driver.register("r")
        driver.move([session], "r")
        assert driver.do(driver.handler.abort_room("r", "too late", driver.now)) == ()

    def test_draining_takes_no_new_rooms(self) -> None:
        """Every session hears ``GOODBYE``; new rooms are refused; the rank is idle when its last grant has ended."""
        driver = Driver(1)
        session = driver.join()
        driver.register("r")
        granted = driver.grant([session], "r")
        assert messages(driver.do(driver.handler.drain(driver.now)), Goodbye)[0].session == session
        with pytest.raises(RoomRefused, match="draining"):
            driver.register("s")
        assert not driver.handler.is_idle
        assert ends(driver.scattered(driver.write(granted, "r"))) == [("r", "")]
        assert driver.handler.is_idle


def test_time_never_falls() -> None:
    """A clock that goes backwards is a bug of the caller's."""
    driver = Driver(1)
    driver.tick()
    with pytest.raises(AssertionError):
        driver.handler.tick(driver.now - 1)


def test_idle_machine_sleeps() -> None:
    """With nobody subscribed and no room there is no deadline at all."""
    assert Driver(1).handler.next_deadline() is None


def test_refused_watermark_is_sent_again_with_the_value_of_then() -> None:
    """A send that would have blocked costs nothing until its retry, which carries what is current by then (section 9)."""
    driver = Driver(1)
    writer, blocked = driver.join(), driver.join(group="h")
    driver.register("r1")
    driver.move([writer], "r1")
    for message in messages(driver.tick(), WatermarkUpdate):
        if message.session == blocked:
            driver.do(driver.handler.send_failed(b"x", message, "full", driver.now))
    driver.register("r2")
    driver.move([writer], "r2")
    assert [m.session for m in messages(driver.tick(), WatermarkUpdate)] == [writer]
    later = messages(driver.wait(0.1, alive=[]), WatermarkUpdate)
    assert later == [WatermarkUpdate(2, 0, blocked)]
    assert driver.count("sends_failed_full") == 1


def test_other_failed_sends_are_only_counted() -> None:
    """Everything else is asked for again by whoever misses it."""
    driver = Driver(1)
    session = driver.join()
    assert driver.do(driver.handler.send_failed(b"x", Goodbye(session, "x"), "unroutable", driver.now)) == ()
    assert driver.count("sends_failed_unroutable") == 1


def test_free_with_many_subscribers_sends_to_those_who_wait() -> None:
    """A free among 500 subscribers sends within its verb to the waiting one only; the others follow in portions."""
    driver = Driver(1, max_sessions=1000)
    for number in range(500):
        driver.join(group=f"idle-{number}")
    a, b = driver.join(group="a"), driver.join(group="b")
    driver.register("ra", group="a")
    driver.register("rb", group="b")
    granted = driver.grant([a], "ra")
    driver.grant([b], "rb")
    driver.tick()
    assert len(messages(driver.scattered(driver.write(granted, "ra")), WatermarkUpdate)) == 1
    assert len(driver.handler.fan_out(driver.now, 100)) == 100
    assert len(driver.handler.fan_out(driver.now, 1000)) == 401


TestAnythingGoes = AnythingGoes.TestCase
TestAnythingGoes.settings = settings(max_examples=80, stateful_step_count=40)


def test_chunk_survives_every_single_loss_and_repeat() -> None:
    """Each message of a transfer is lost once and each is delivered twice: retries alone bring it to its end."""
    driver = Driver(2)
    a, b = driver.join(0), driver.join(1)
    driver.register("r", 2 * CHUNK_TOKENS)
    for chunk in (0, 1):
        for session in (a, b, a, b):
            driver.ask(session, "r", chunk)
        granted = {}
        for session in (a, b):
            answer = driver.ask(session, "r", chunk)
            assert answer is not None
            assert answer.status is GrantStatus.GRANTED
            assert answer.grant is not None
            granted[session] = answer.grant
        outputs = [driver.ready(session, "r", granted[session], chunk) for session in (a, a, b, b)]
        (scatter,) = [output for step in outputs for output in found(step, ScatterChunk)]
        driver.scattered(scatter)
        for session in (a, b):
            (done,) = messages(driver.ready(session, "r", granted[session], chunk), ChunkDone)
            assert done.status is DoneStatus.SCATTERED
    end = driver.handler.room_end("r")
    assert end is not None
    assert end.done
