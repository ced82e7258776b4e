"""New memory for a pinned ring: when it is asked for, what moves over, and what a former region still waits for."""

from dataclasses import replace

from decode_service.outputs import CopyPiece, ReleaseRegion, ReplaceRegion
from protocol.messages import Error, ErrorCode, GrantStatus, Subscribed
from tests.unit.decode_service.driver import CHUNK_TOKENS, SHM, ZMQ, Driver, ends, found, messages, only


def pinned(**changes: object) -> tuple[Driver, str, str]:
    """A fell silent while both writers were writing room ``r``; B lives."""
    driver = Driver(2, **changes)  # type: ignore[arg-type]
    a, b = driver.join(0), driver.join(1)
    driver.register("r", 2 * CHUNK_TOKENS)
    granted = driver.grant([a, b], "r")
    driver.wait(13, alive=[b])
    driver.ready(b, "r", granted[b])
    return driver, a, b


def test_asked_for_after_the_quarantine() -> None:
    """Without proof new memory is asked for once, 30 s after the grant closed, and nothing new is granted meanwhile."""
    driver, _, b = pinned()
    assert found(driver.wait(28, alive=[b]), ReplaceRegion) == []
    (order,) = found(driver.wait(10, alive=[b]), ReplaceRegion)
    assert "room 'r': writer fenced: silent for 12" in order.reason
    answer = driver.ask(b, "r", 1)
    assert answer is not None
    assert answer.status is GrantStatus.BUSY
    assert "being replaced" in answer.message


def test_proof_in_time_needs_no_memory() -> None:
    """A grant that is released within its quarantine costs nothing."""
    driver, a, b = pinned()
    driver.wait(28, alive=[b])
    driver.quiet(a)
    assert found(driver.wait(60, alive=[b]), ReplaceRegion) == []


def test_everything_moves_to_the_new_epoch() -> None:
    """Sessions are told to subscribe again, grants are gone with the ring, and the room goes on from what was scattered."""
    driver, _, b = pinned()
    driver.wait(31, alive=[b])
    outputs = driver.replace_region()
    assert [(error.session, error.code) for error in messages(outputs, Error)] == [(b, ErrorCode.UNKNOWN_SESSION)]
    assert found(outputs, ReleaseRegion) == [ReleaseRegion(0xE0)]
    assert (driver.live_grants(), driver.watermark) == ([], (0, 0))
    answers = [only(driver.hear(driver.subscribe_message(n), b"x"), Subscribed) for n in (0, 1)]
    assert {answer.epoch for answer in answers} == {0xE1}
    sessions = [answer.session for answer in answers]
    driver.routes.update(dict.fromkeys(sessions, b"x"))
    assert ends(driver.move(sessions, "r", 0)) == []
    assert ends(driver.move(sessions, "r", 1)) == [("r", "")]


def test_ids_go_on() -> None:
    """A word about a grant of the former epoch can never be taken for one of the new."""
    driver = Driver(1)
    old = driver.join()
    driver.register("r")
    before = driver.grant([old], "r")[old]
    driver.replace_region()
    new = driver.join()
    after = driver.grant([new], "r")[new]
    assert after.alloc_id > before.alloc_id
    assert new != old


def test_running_scatter_ends_as_consumed() -> None:
    """A scatter of the former region records its chunk in the room; the memory is kept until it ends."""
    driver = Driver(1)
    old = driver.join()
    driver.register("r", 2 * CHUNK_TOKENS)
    scatter = driver.write(driver.grant([old], "r", 0), "r", 0)
    assert found(driver.replace_region(), ReleaseRegion) == []
    new = driver.join()
    answer = driver.ask(new, "r", 0)
    assert answer is not None
    assert answer.status is GrantStatus.PENDING
    assert found(driver.scattered(scatter), ReleaseRegion) == [ReleaseRegion(0xE0)]
    answer = driver.ask(new, "r", 0)
    assert answer is not None
    assert answer.status is GrantStatus.DONE
    assert ends(driver.move([new], "r", 1)) == [("r", "")]


def test_bad_slice_of_a_former_region_is_written_again() -> None:
    """There is nobody to reject it to: the chunk is simply open again."""
    driver = Driver(1)
    scatter_session = driver.join()
    driver.register("r")
    scatter = driver.write(driver.grant([scatter_session], "r"), "r")
    driver.replace_region()
    new = driver.join()
    driver.scattered(scatter, bad=(scatter.slices[0].layout.writer,))
    assert ends(driver.move([new], "r")) == [("r", "")]


def test_running_copy_keeps_the_former_memory() -> None:
    """The copy of a piece into the former region ends there; its word is judged no more and the chunk starts anew."""
    driver = Driver(1)
    old = driver.join(planes=("zmq",))
    driver.register("r")
    granted = driver.grant([old], "r")
    (copy,) = driver.piece(old, "r", granted[old], 0)
    assert isinstance(copy, CopyPiece)
    driver.ready(old, "r", granted[old])
    assert found(driver.replace_region(), ReleaseRegion) == []
    assert driver.copied(copy) == (ReleaseRegion(0xE0),)
    new = driver.join()
    assert ends(driver.move([new], "r")) == [("r", "")]


def test_room_aborted_while_its_copy_runs_in_a_former_region() -> None:
    """The engine hears of the failure when the copy has ended, wherever it ran."""
    driver = Driver(1)
    session = driver.join()
    driver.register("r")
    scatter = driver.write(driver.grant([session], "r"), "r")
    driver.replace_region()
    assert ends(driver.do(driver.handler.abort_room("r", "enough", driver.now))) == []
    assert ends(driver.scattered(scatter)) == [("r", "aborted")]


def test_failed_scatter_of_a_former_region() -> None:
    """Our own fault fails the room here as well."""
    driver = Driver(1)
    session = driver.join()
    driver.register("r")
    scatter = driver.write(driver.grant([session], "r"), "r")
    driver.replace_region()
    outputs = driver.do(driver.handler.scatter_failed(scatter.alloc_id, "pool vanished", driver.now))
    assert ends(outputs) == [("r", "scatter_failed")]
    assert found(outputs, ReleaseRegion) == [ReleaseRegion(0xE0)]
    assert driver.handler.is_idle


def test_memory_that_can_still_be_reached_is_kept() -> None:
    """Where a writer can reach the old region for ever it is never given back; beyond the bound the rooms fail instead."""
    driver, _, b = pinned(planes=(replace(SHM, reaches_retired=True), ZMQ), max_retired_regions=1)
    driver.wait(31, alive=[b])
    assert found(driver.replace_region(), ReleaseRegion) == []
    a, b = driver.join(0), driver.join(1)
    driver.grant([a, b], "r")
    outputs = driver.wait(45, alive=[b])
    assert found(outputs, ReplaceRegion) == []
    assert ends(outputs) == [("r", "staging_pinned")]
    driver.quiet(a)
    assert driver.handler.snapshot()["stuck_reason"] == "1 former regions are still kept, limit 1"


def test_memory_that_cannot_be_had_fails_the_rooms_concerned() -> None:
    """Rooms that hang on missing proof fail, others wait; when the proof comes after all everything moves again."""
    driver, a, b = pinned(ring=1000)
    driver.register("other", group="h")
    other = driver.join(0, group="h")
    driver.wait(31, alive=[b, other])
    outputs = driver.do(driver.handler.region_unavailable("no space", driver.now))
    assert ends(outputs) == [("r", "staging_pinned")]
    assert driver.watermark == (0, 0)
    driver.quiet(a)
    assert driver.live_grants() == []
    second = driver.join(1, group="h")
    assert ends(driver.move([other, second], "other")) == [("other", "")]
