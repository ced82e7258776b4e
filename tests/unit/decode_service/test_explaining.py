"""An explanation says who is waited for, since when, who holds the ring, and what comes next, in words to act upon."""

import json

from decode_service.explaining import Explanation, explain_ring, explain_room, explain_unserved, waiting_chunks
from protocol.messages import Blocked, Heartbeat, WatermarkUpdate
from protocol.watermark import START
from tests.unit.decode_service.driver import CHUNK_TOKENS, Driver


def why(driver: Driver, room: str, chunk: int | None = 0) -> Explanation:
    """The one explanation of a chunk, which is plain data."""
    (found,) = explain_room(driver.handler.state, room, chunk)
    assert json.loads(json.dumps(found.to_map())) == found.to_map()
    return found


def told(found: Explanation) -> str:
    """Everything it says."""
    return "\n".join((found.summary, *found.lines, *map(str, found.next)))


def test_a_room_nobody_knows_and_one_nobody_registered() -> None:
    """The engine that did not register is told from the prefill that did not ask."""
    driver = Driver(1)
    session = driver.join()
    assert why(driver, "r").state == "unknown"
    driver.ask(session, "r")
    found = why(driver, "r")
    assert found.state == "parked"
    assert "waits for the decode engine, which has not registered it; prefill 'g-p0' asked for 1 chunk" in found.summary


def test_rooms_that_are_over() -> None:
    """A room that is complete waits for nothing; one that failed says why."""
    driver = Driver(1, ring=1000)
    session = driver.join()
    driver.register("done")
    driver.move([session], "done")
    driver.register("failed")
    driver.do(driver.handler.abort_room("failed", "changed my mind", driver.now))
    assert why(driver, "done").summary == "room 'done' is complete: nothing is waited for"
    assert why(driver, "failed").summary == "room 'failed' has failed (aborted: changed my mind)"


def test_nobody_has_asked() -> None:
    """The prefill is named if one is subscribed, otherwise its group; the deadline is told."""
    driver = Driver(1, ring=1000)
    driver.register("r", 3 * CHUNK_TOKENS)
    found = why(driver, "r", None)
    assert (found.state, found.chunk) == ("not_requested", None)
    assert "waits for prefill group 'g', of which nobody is subscribed here; 0 of 3 chunks" in found.summary
    session = driver.join()
    driver.move([session], "r", 0)
    found = why(driver, "r", 2)
    assert found.summary.endswith("ask for the next chunk (prefill 'g-p0'); 1 of 3 chunks are in their pages")
    assert found.prefills == ["g-p0"]
    assert why(driver, "r", 0).state == "scattered"
    assert why(driver, "r", 3).summary == "room 'r' has chunks 0 to 2, and no chunk 3"
    assert "the room fails if it is not complete" in told(found)


def test_groups_nobody_subscribed_for_are_named_without_a_room() -> None:
    """Once per group, with its oldest room and since when; a group that is subscribed is not blamed."""
    driver = Driver(1, ring=1000)
    session = driver.join()
    driver.register("served")
    driver.register("first", group="missing")
    driver.wait(3, alive=[session])
    driver.register("second", group="missing")
    (found,) = explain_unserved(driver.handler.state)
    assert (found.room, found.since_s) == ("first", 3.0)
    assert "'first' waits for prefill group 'missing', of which nobody is subscribed here" in found.summary
    assert found.summary.endswith("0 of 1 chunks are in their pages, registered 3.0 s ago")
    assert found.lines == ["behind it: 1 room registered later"]


def test_a_writer_that_has_not_asked_is_named() -> None:
    """With one writer's request there, the other one is waited for; one that is not subscribed is named by its place."""
    driver = Driver(2)
    a = driver.join(0)
    driver.register("r")
    driver.ask(a, "r")
    driver.wait(2, alive=[a])
    found = why(driver, "r")
    assert (found.state, found.since_s) == ("requested", 2.0)
    assert "waits for writer tp 1 pp 0 of group 'g', which is not subscribed to ask" in found.summary
    driver.join(1)
    found = why(driver, "r")
    assert "waits for prefill 'g-p1' to ask" in found.summary
    assert "prefill 'g-p1' is fenced unless it says something" in told(found)


def test_a_writer_that_has_not_written_is_named_with_what_will_happen() -> None:
    """Its last frame each way, its lease, and the chain of fence, quarantine and replacement with their times."""
    driver = Driver(2, ring=1000)
    a, b = driver.join(0), driver.join(1)
    driver.register("r")
    granted = driver.grant([a, b], "r")
    driver.ready(b, "r", granted[b])
    driver.hear(Heartbeat(a, 1, START, Blocked("r", 0, 1, 80, 0.5)))
    driver.wait(3, alive=[b])
    found = why(driver, "r")
    alloc_id = granted[a].alloc_id
    assert (found.state, found.alloc_id, found.oldest_alloc_id) == ("writing", alloc_id, alloc_id)
    assert found.prefills == ["g-p0"]
    words = told(found)
    assert f"grant {alloc_id} (bytes 0 to 80 of round 0) of room 'r' chunk 0 waits for the bytes of prefill 'g-p0'" in words
    assert "silent for 3.0 s" in words
    assert "last frame from prefill 'g-p0': HEARTBEAT 3.0 s ago; last frame to it: " in words
    assert "prefill 'g-p0' has 9.0 s left to say something before it is fenced" in words
    assert "prefill 'g-p0' itself said it is blocked on room 'r' chunk 0" in words
    assert "it is the oldest grant of the ring" in words
    assert [(step.what.partition(",")[0], step.in_s) for step in found.next[:3]] == [
        ("prefill 'g-p0' is fenced unless it says something", 9.0),
        (f"grant {alloc_id} is quarantined then", 9.0),
        ("the region is replaced if no proof has come", 39.0),
    ]


def test_a_quarantined_grant_says_what_proof_it_waits_for() -> None:
    """After the fence: why it is closed, whose proof is missing, and when the region is replaced."""
    driver = Driver(1, ring=1000)
    session = driver.join()
    driver.register("r")
    driver.grant([session], "r")
    driver.wait(20)
    (found,) = explain_ring(driver.handler.state)
    assert found.state == "quarantined"
    words = told(found)
    assert "waits for proof that prefill 'g-p0' (tp 0 pp 0), fenced: silent for 12.0 s; silent for 20.0 s cannot write" in words
    assert "quarantined 8.0 s ago: writer fenced: silent for 12.0 s" in words
    assert ("in 22.0 s the region is replaced if no proof has come" in words) is True
    driver.wait(23)
    assert "the region is being replaced now" in told(explain_ring(driver.handler.state)[0])


def test_a_gated_grant_names_who_holds_the_ring() -> None:
    """A grant behind the oldest one waits for its turn, and the explanation speaks of that one and its prefill."""
    driver = Driver(1, ring=100)
    slow, quick = driver.join(0, group="slow"), driver.join(0, group="quick")
    driver.register("first", group="slow")
    held = driver.grant([slow], "first")[slow]
    driver.register("second", group="quick")
    driver.grant([quick], "second")
    driver.wait(4, alive=[quick])
    found = why(driver, "second")
    assert (found.state, found.oldest_alloc_id) == ("gated", held.alloc_id)
    words = told(found)
    assert f"waits for its turn in the ring, which grant {held.alloc_id} (bytes 0 to 80 of round 0) of room 'first'" in words
    assert "prefill 'quick-p0' is fenced" not in words
    assert "its gate needs watermark (0, 80) or a later one; the ring's is (0, 0): shut" in words
    assert f"the oldest grant of the ring is grant {held.alloc_id} (bytes 0 to 80 of round 0) of room 'first' chunk 0" in words
    assert "it waits for the bytes of prefill 'slow-p0' (tp 0 pp 0), silent for 4.0 s" in words
    assert "in 8.0 s prefill 'slow-p0' is fenced unless it says something (the oldest grant)" in words


def test_a_two_sided_plane_is_told_apart() -> None:
    """Where this side does the writing, the fence itself is the proof."""
    driver = Driver(1, ring=1000)
    session = driver.join(0, planes=("zmq",))
    driver.register("r")
    driver.grant([session], "r")
    assert "is released then: on plane zmq only this side writes" in told(why(driver, "r"))


def test_a_scatter_of_ours_is_not_blamed_on_a_prefill() -> None:
    """While a worker copies, the answer says so and foretells nothing about writers."""
    driver = Driver(1, ring=1000)
    session = driver.join()
    driver.register("r")
    driver.write(driver.grant([session], "r"), "r")
    found = why(driver, "r")
    assert (found.state, found.prefills) == ("scattering", [])
    assert "waits for a copy of this side that runs" in found.summary


def test_failed_sends_are_told() -> None:
    """What could not be sent to a prefill stands beside the last frame to it."""
    driver = Driver(1, ring=1000)
    session = driver.join()
    driver.register("r")
    driver.grant([session], "r")
    driver.do(driver.handler.send_failed(b"", WatermarkUpdate(0, 0, session), "full", driver.now))
    assert "1 send to it failed, the latest 0.0 s ago (full)" in told(why(driver, "r"))


def test_what_waits_and_since_when() -> None:
    """Every chunk that was asked for and is not scattered, from its first request on."""
    driver = Driver(1, ring=1000)
    session = driver.join()
    driver.register("r", 2 * CHUNK_TOKENS)
    driver.move([session], "r", 0)
    driver.grant([session], "r", 1)
    at = driver.now
    driver.wait(3, alive=[session])
    assert list(waiting_chunks(driver.handler.state)) == [(("r", 1), at)]
