"""The words for durations, grants and what comes next."""

from decode_service.describing import Coming, fence_in, grant_name, grant_waits_for, plural, quarantine_left, seconds
from tests.unit.decode_service.driver import Driver


def test_small_words() -> None:
    """Durations are never negative, numbers agree with their nouns, and what has no time has none."""
    assert (seconds(1.26), seconds(-3)) == ("1.3 s", "0.0 s")
    assert (plural(1, "chunk"), plural(0, "chunk"), plural(2, "chunk")) == ("1 chunk", "0 chunks", "2 chunks")
    assert (str(Coming("it ends", 2.0)), str(Coming("it ends", None))) == ("in 2.0 s it ends", "it ends")


def test_a_grant_is_named_by_its_place_and_owner() -> None:
    """Id, bytes, round, room and chunk, and the deadlines that the machine itself keeps."""
    driver = Driver(1, ring=1000)
    session = driver.join()
    driver.register("r")
    driver.grant([session], "r")
    state = driver.handler.state
    (grant,) = state.grants
    assert grant_name(grant) == "grant 1 (bytes 0 to 80 of round 0) of room 'r' chunk 0"
    live = state.sessions.current(session)
    assert live is not None
    assert fence_in(state, live) == 12.0
    assert quarantine_left(state, grant) is None
    driver.wait(13)
    assert quarantine_left(state, grant) == 29.0


def test_a_tainted_grant_waits_for_the_end_of_the_region() -> None:
    """No proof is asked for where none can be given."""
    driver = Driver(1, ring=1000)
    session = driver.join()
    driver.register("r")
    granted = driver.grant([session], "r")[session]
    driver.failed(session, "r", granted)
    (grant,) = driver.handler.state.grants
    assert grant_waits_for(driver.handler.state, grant).startswith(
        "nothing but the end of the region: a write of 'g-p0' failed"
    )
