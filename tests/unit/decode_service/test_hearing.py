"""Who is heard: strangers, noise, heartbeats, and routes that change."""

from dataclasses import replace

import pytest

from decode_service.outputs import Send
from protocol.errors import Fault, RemoteProtocolError
from protocol.messages import (
    Abort,
    AbortAck,
    Blocked,
    ChunkReady,
    DataPiece,
    Error,
    ErrorCode,
    Heartbeat,
    HeartbeatAck,
    StagingReq,
    ToDecode,
    Unsubscribe,
    WatermarkUpdate,
    WriteFailed,
)
from protocol.watermark import START, Watermark
from tests.unit.decode_service.driver import SUM, Driver, ends, messages, only

STRANGE: list[ToDecode] = [
    StagingReq("nobody", "r", 0, 0, 4),
    ChunkReady("nobody", "r", 0, 1, 1, 80, SUM),
    WriteFailed("nobody", "r", 0, 1, 1, "?"),
    Abort("nobody", "r", 1, "?"),
    AbortAck("nobody", "r", 1),
    Heartbeat("nobody", 1, START),
    Unsubscribe("nobody", "?"),
]


@pytest.mark.parametrize("message", STRANGE, ids=lambda message: type(message).__name__)
def test_unknown_session_is_told_and_changes_nothing(message: ToDecode) -> None:
    """A session that was never minted here gets ``unknown_session``, except for last words; a granted room goes on."""
    driver = Driver(1)
    session = driver.join()
    driver.register("r")
    granted = driver.grant([session], "r")
    outputs = driver.hear(message, b"somewhere")
    if isinstance(message, AbortAck | Unsubscribe):
        assert outputs == ()
    else:
        text = "this session is not current; subscribe again"
        error = Error("nobody", ErrorCode.UNKNOWN_SESSION, text, type(message).__name__)
        assert outputs == (Send(b"somewhere", error),)
    assert ends(driver.scattered(driver.write(granted, "r"))) == [("r", "")]


def test_stranger_on_a_data_socket_cannot_be_answered() -> None:
    """A data socket is one-way: nothing is sent, the message is dropped."""
    driver = Driver(1)
    assert driver.hear(ChunkReady("nobody", "r", 0, 1, 1, 80, SUM), b"") == ()
    assert driver.do(driver.handler.receive_data(DataPiece("nobody", "r", 0, 1, 1, 0, 16), 16, driver.now)) == ()
    assert driver.count("pieces_refused_session") == 1


def test_sessions_of_another_epoch_are_strangers() -> None:
    """A decode rank that restarted knows none of its former life's sessions, so nothing they believe counts here."""
    before, after = Driver(1, epoch=1), Driver(1, epoch=2)
    old = before.join()
    after.join()
    assert only(after.ask_all(old, "r"), Error).code is ErrorCode.UNKNOWN_SESSION


def test_heartbeat_is_acked_and_followed_by_the_watermark() -> None:
    """The answer to a heartbeat repeats the absolute state, so a lost ``WATERMARK`` heals when nothing else moves."""
    driver = Driver(1)
    session = driver.join()
    driver.register("r")
    driver.move([session], "r")
    outputs = driver.hear(Heartbeat(session, 5, START))
    assert [send.message for send in outputs if isinstance(send, Send)] == [
        HeartbeatAck(session, 5),
        WatermarkUpdate(1, 0, session),
    ]


def test_blocked_heartbeat_is_remembered_for_the_operator() -> None:
    """What a probing prefill waits for is in the snapshot until it says otherwise."""
    driver = Driver(1)
    session = driver.join()
    driver.hear(Heartbeat(session, 1, Watermark(0, 0), Blocked("r", 3, 1, 80, 0.5)))
    row = driver.handler.snapshot()["sessions"]
    assert isinstance(row, list)
    assert row[0]["blocked"] == {"room": "r", "chunk": 3, "round": 1, "end": 80, "waited_s": 0.5}
    driver.hear(Heartbeat(session, 2, Watermark(0, 0)))
    row = driver.handler.snapshot()["sessions"]
    assert isinstance(row, list)
    assert row[0]["blocked"] is None


def test_answers_follow_the_latest_route() -> None:
    """After a reconnect everything goes to where the last valid message came from; a data socket does not count."""
    driver = Driver(1)
    session = driver.join()
    driver.register("r")
    driver.hear(Heartbeat(session, 1, START), b"second")
    driver.hear(ChunkReady(session, "x", 0, 9, 1, 1, SUM), b"")
    outputs = driver.do(driver.handler.abort_room("r", "x", driver.now))
    assert {send.route for send in outputs if isinstance(send, Send)} == {b"second"}


def noise(session: str | None) -> RemoteProtocolError:
    """What the codec raises for a bad field."""
    return RemoteProtocolError(Fault.WRONG_TYPE, "chunk", "an integer", session)


def test_noise_is_counted_and_answered_to_current_sessions_only() -> None:
    """A malformed frame of a live session is answered; that of anyone else is counted and dropped."""
    driver = Driver(1)
    session = driver.join()
    outputs = driver.do(driver.handler.receive_error(b"there", noise(session), driver.now))
    error = only(outputs, Error)
    assert (error.session, error.code, error.in_reply_to) == (session, ErrorCode.MALFORMED, "chunk")
    for claimed in (None, "nobody"):
        assert driver.do(driver.handler.receive_error(b"there", noise(claimed), driver.now)) == ()
    assert driver.do(driver.handler.receive_error(b"", noise(session), driver.now)) == ()
    assert driver.count("malformed_wrong_type") == 4


def test_noise_does_not_renew_a_lease() -> None:
    """Only valid messages show that a prefill lives."""
    driver = Driver(1)
    session = driver.join()
    for _ in range(13):
        driver.wait(1.0)
        driver.do(driver.handler.receive_error(b"there", noise(session), driver.now))
    assert driver.handler.state.sessions.current(session) is None


@pytest.mark.parametrize("times", [2, 5])
def test_reordered_and_repeated_messages_end_in_the_same_state(times: int) -> None:
    """Words before their grant, repeats, and an early abort ack: the room still completes exactly once."""
    driver = Driver(2)
    a, b = driver.join(0), driver.join(1)
    driver.register("r")
    for _ in range(times):
        driver.hear(ChunkReady(a, "r", 0, 1, 1, 40, SUM))
        driver.hear(AbortAck(a, "r", 1))
        driver.ask(a, "r")
    granted = driver.grant([a, b], "r")
    for _ in range(times):
        driver.ask(b, "r")
        driver.hear(replace(driver.ready_message(a, "r", granted[a]), alloc_id=granted[a].alloc_id + 1))
    assert ends(driver.scattered(driver.write(granted, "r"))) == [("r", "")]
    assert messages(driver.ask_all(a, "r"), Error) == []
