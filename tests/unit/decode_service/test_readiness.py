"""Ready means: it takes rooms, and something moved lately or nothing was waiting."""

from decode_service.readiness import unready_reasons
from tests.unit.decode_service.driver import CHUNK_TOKENS, Driver

STALL_S = 15.0


def reasons(driver: Driver) -> list[str]:
    """As of now."""
    return unready_reasons(driver.handler.as_of(driver.now), STALL_S)


def test_an_idle_rank_is_ready() -> None:
    """However long it has had nothing to do, even with a room that nobody has asked for yet."""
    driver = Driver(1)
    session = driver.join()
    driver.register("r", 2 * CHUNK_TOKENS)
    driver.wait(100, alive=[session])
    assert reasons(driver) == []


def test_draining_and_stuck_ranks_are_not() -> None:
    """Each reason is told."""
    driver = Driver(1)
    driver.do(driver.handler.drain(driver.now))
    driver.handler.state.stuck_reason = "no memory"
    assert reasons(driver) == ["it is draining", "its ring is pinned and could not be replaced: no memory"]


def test_nothing_moves_while_work_waits() -> None:
    """A grant that nobody writes makes it unready after a while; movement anywhere else keeps it ready."""
    driver = Driver(1, ring=1000, lease_s=1000.0)
    stopped, quick = driver.join(0, group="stopped"), driver.join(0, group="quick")
    driver.register("r", group="stopped")
    driver.grant([stopped], "r")
    driver.wait(STALL_S - 1, alive=[quick])
    assert reasons(driver) == []
    driver.register("q", group="quick")
    driver.move([quick], "q")
    driver.wait(2, alive=[quick])
    assert reasons(driver) == []
    driver.wait(STALL_S, alive=[quick])
    assert reasons(driver) == ["nothing has moved for 17.0 s while 1 chunks wait"]


def test_what_a_prefill_has_not_asked_for_is_not_this_ranks_fault() -> None:
    """A chunk that waits for a writer's request does not make the decode side unready."""
    driver = Driver(2)
    a, b = driver.join(0), driver.join(1)
    driver.register("r")
    driver.ask(a, "r")
    driver.wait(2 * STALL_S, alive=[a, b])
    assert reasons(driver) == []
