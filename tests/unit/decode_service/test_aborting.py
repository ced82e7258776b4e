"""The table of aborts: one per session and room, repeated with growing waits, ended by its own ack only."""

from protocol.messages import Abort
from tests.unit.decode_service.driver import Driver, messages


def test_waits_grow_up_to_the_limit() -> None:
    """The first repeat comes within 0.2 s, later ones at most 2 s apart, each with the same id."""
    driver = Driver(1)
    session = driver.join()
    driver.register("r")
    driver.grant([session], "r")
    (first,) = messages(driver.do(driver.handler.abort_room("r", "x", driver.now)), Abort)
    assert messages(driver.wait(0.2, alive=[session]), Abort) == [first]
    driver.wait(10, alive=[session])
    late = messages(driver.wait(10, alive=[session]), Abort)
    assert set(late) == {first}
    assert 5 <= len(late) <= 7


def test_one_table_entry_per_session_and_room() -> None:
    """Many failed rooms are many entries, each ended by its own ack; a session that ends takes the rest along."""
    driver = Driver(1, ring=1000)
    session = driver.join()
    for room in ("r", "s", "t"):
        driver.register(room)
        driver.ask(session, room)
    aborts = [messages(driver.do(driver.handler.abort_room(room, "x", driver.now)), Abort)[0] for room in ("r", "s", "t")]
    table = driver.handler._closing.aborting.pending
    assert len(table) == 3
    driver.ack(aborts[1])
    assert set(table) == {(session, "r"), (session, "t")}
    driver.leave(session)
    assert table == {}


def test_reason_names_the_code_and_is_cut() -> None:
    """The writer hears why, in a message that always fits."""
    driver = Driver(1)
    driver.join()
    driver.register("r")
    (abort,) = messages(driver.do(driver.handler.abort_room("r", "x" * 5000, driver.now)), Abort)
    assert abort.reason.startswith("aborted: xxx")
    assert len(abort.reason) == 512


def test_fenced_session_is_still_asked() -> None:
    """A fenced writer's ack is proof, so it is asked for as long as its grant is pinned."""
    driver = Driver(1, quarantine_s=1000.0)
    session = driver.join()
    driver.register("r")
    driver.grant([session], "r")
    driver.do(driver.handler.abort_room("r", "x", driver.now))
    driver.wait(13)
    (abort, *_) = messages(driver.wait(3), Abort)
    driver.ack(abort)
    assert driver.live_grants() == []
    assert messages(driver.wait(5), Abort) == []
