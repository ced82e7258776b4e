"""Two-sided planes: which pieces are let into the ring, and a word that overtakes its copies."""

import pytest

from decode_service.outputs import CopyPiece, ScatterChunk
from protocol.layout import WriterKey
from protocol.messages import Abort, GrantSlice
from tests.unit.decode_service.driver import CHUNK_TOKENS, Driver, ends, found, only, verdicts


def granted_room(*, tp: int = 1, **changes: object) -> tuple[Driver, str, dict[str, GrantSlice]]:
    """A granted chunk of 80 bytes: five pieces of one writer, or three (16, 16, 8) of each of two."""
    driver = Driver(tp, **changes)  # type: ignore[arg-type]
    sessions = [driver.join(tp_rank, planes=("zmq",)) for tp_rank in range(tp)]
    driver.register("r")
    return driver, sessions[0], driver.grant(sessions, "r")


def arrive(driver: Driver, session: str, grant: GrantSlice, index: int, **changes: object) -> CopyPiece:
    """A piece that is let in."""
    (copy,) = driver.piece(session, "r", grant, index, **changes)
    assert isinstance(copy, CopyPiece)
    return copy


def test_pieces_go_to_the_writers_slice() -> None:
    """Each piece is copied to its place within the slice within the grant; the last one is short."""
    driver = Driver(2)
    a, b = driver.join(0, planes=("zmq",)), driver.join(1, planes=("zmq",))
    driver.register("r")
    granted = driver.grant([a, b], "r")
    copies = [arrive(driver, b, granted[b], index) for index in range(3)]
    assert [(copy.offset, copy.num_bytes) for copy in copies] == [(40, 16), (56, 16), (72, 8)]
    assert len({copy.copy_id for copy in copies}) == 3


def test_word_waits_for_the_copies() -> None:
    """``CHUNK_READY`` on the ordered pipe comes before the copies end; the scatter starts when the last one has."""
    driver, session, granted = granted_room()
    copies = [arrive(driver, session, granted[session], index) for index in range(5)]
    assert driver.ready(session, "r", granted[session]) == ()
    assert driver.ready(session, "r", granted[session]) == ()
    assert [found(driver.copied(copy), ScatterChunk) for copy in copies[:4]] == [[]] * 4
    (scatter,) = found(driver.copied(copies[4]), ScatterChunk)
    assert ends(driver.scattered(scatter)) == [("r", "")]


def test_pieces_may_come_in_any_order() -> None:
    """Nothing depends on their order."""
    driver, session, granted = granted_room()
    for index in (4, 0, 3, 1, 2):
        driver.copied(arrive(driver, session, granted[session], index))
    assert len(found(driver.ready(session, "r", granted[session]), ScatterChunk)) == 1


def test_missing_piece_is_rejected_and_sent_again() -> None:
    """A word without all its bytes is rejected; the next attempt sends every piece anew. Losses never count as corruption."""
    driver, session, granted = granted_room(max_rewrites=0)
    for attempt in (1, 2, 3):
        driver.copied(arrive(driver, session, granted[session], 1, attempt=attempt))
        outputs = driver.ready(session, "r", granted[session], attempt=attempt)
        assert verdicts(outputs) == [(session, "rejected", attempt, "missing_bytes")]
    for index in range(5):
        driver.copied(arrive(driver, session, granted[session], index, attempt=4))
    assert len(found(driver.ready(session, "r", granted[session], attempt=4), ScatterChunk)) == 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param({"alloc_id": 99}, "no_grant", id="unknown grant"),
        pytest.param({"room": "s"}, "not_its_grant", id="other room"),
        pytest.param({"chunk": 1}, "not_its_grant", id="other chunk"),
        pytest.param({"session": "nobody"}, "session", id="unknown session"),
        pytest.param({"attempt": 2}, "attempt", id="future attempt"),
        pytest.param({"attempt": 0}, "attempt", id="past attempt"),
        pytest.param({"offset": 8}, "offset", id="off the grid"),
        pytest.param({"offset": 80}, "offset", id="past the slice"),
        pytest.param({"offset": 160}, "offset", id="far past the slice"),
        pytest.param({"offset": -16}, "offset", id="before the slice"),
        pytest.param({"num_bytes": 15}, "size", id="short"),
        pytest.param({"num_bytes": 32}, "size", id="two pieces in one"),
        pytest.param({"payload": 15}, "size", id="payload shorter than its header"),
        pytest.param({"payload": 1 << 20}, "size", id="payload longer than its header"),
    ],
)
def test_wrong_piece_touches_nothing(change: dict[str, object], reason: str) -> None:
    """A piece is judged by every field before a byte is copied, and counted by what was wrong."""
    driver, session, granted = granted_room()
    assert driver.piece(session, "r", granted[session], 0, **change) == ()
    assert driver.count(f"pieces_refused_{reason}") == 1
    arrive(driver, session, granted[session], 0)


def test_repeated_piece_is_copied_once() -> None:
    """A piece that comes twice within an attempt is copied once, also while its first copy runs."""
    driver, session, granted = granted_room()
    copy = arrive(driver, session, granted[session], 0)
    assert driver.piece(session, "r", granted[session], 0) == ()
    driver.copied(copy)
    assert driver.piece(session, "r", granted[session], 0) == ()
    assert driver.count("pieces_refused_repeated") == 2


def test_piece_before_the_grant_is_ready_is_refused() -> None:
    """The gate is the writer's, and this side holds it too: bytes that something alive occupies are not overwritten."""
    driver = Driver(1)
    session = driver.join(planes=("zmq",))
    driver.register("r", 2 * CHUNK_TOKENS)
    first = driver.grant([session], "r", 0)
    second = driver.grant([session], "r", 1)
    assert second[session].round == 1
    assert driver.piece(session, "r", second[session], 0, chunk=1) == ()
    for index in range(5):
        driver.copied(arrive(driver, session, first[session], index))
    (scatter,) = found(driver.ready(session, "r", first[session]), ScatterChunk)
    driver.scattered(scatter)
    assert len(driver.piece(session, "r", second[session], 0, chunk=1)) == 1


def test_piece_after_the_word_is_refused() -> None:
    """A writer that has given its word writes no more, whether the word waits for copies or was accepted."""
    driver, session, granted = granted_room(tp=2)
    copies = [arrive(driver, session, granted[session], index) for index in range(2)]
    driver.ready(session, "r", granted[session])
    assert driver.piece(session, "r", granted[session], 2) == ()
    assert [verdicts(driver.copied(copy)) for copy in copies] == [[], [(session, "rejected", 1, "missing_bytes")]]
    for index in range(3):
        driver.copied(arrive(driver, session, granted[session], index, attempt=2))
    driver.ready(session, "r", granted[session], attempt=2)
    assert driver.piece(session, "r", granted[session], 0, attempt=2) == ()


def test_piece_of_a_one_sided_session_is_refused() -> None:
    """Who negotiated shared memory sends no payload."""
    driver = Driver(1)
    session = driver.join(planes=("shm",))
    driver.register("r")
    granted = driver.grant([session], "r")
    assert driver.piece(session, "r", granted[session], 0) == ()
    assert driver.count("pieces_refused_not_its_grant") == 1


def test_pieces_of_another_writer_are_refused() -> None:
    """A session reaches its own slice only."""
    driver, _, granted = granted_room(tp=2)
    stranger = driver.join(0, group="h", planes=("zmq",))
    grant = next(iter(granted.values()))
    assert driver.piece(stranger, "r", grant, 0) == ()


def test_aborted_room_waits_for_its_copies_and_takes_no_more() -> None:
    """After an abort no piece is let in; the engine hears of it, and the region is free, when the running copy has ended."""
    driver, session, granted = granted_room()
    copy = arrive(driver, session, granted[session], 0)
    outputs = driver.do(driver.handler.abort_room("r", "enough", driver.now))
    assert ends(outputs) == []
    assert driver.piece(session, "r", granted[session], 1) == ()
    driver.ack(only(outputs, Abort))
    assert driver.live_grants() == [("r", "closed")]
    assert ends(driver.copied(copy)) == [("r", "aborted")]
    assert driver.live_grants() == []


def test_fenced_session_is_quiet_once_our_copies_end() -> None:
    """On a two-sided plane refusing a session is proof: its grant ends with the copy of ours that was running."""
    driver, session, granted = granted_room()
    copy = arrive(driver, session, granted[session], 0)
    driver.wait(13)
    assert driver.live_grants() == [("r", "closed")]
    assert driver.piece(session, "r", granted[session], 1) == ()
    driver.copied(copy)
    assert driver.live_grants() == []


def test_claimed_word_of_a_session_that_was_fenced_meanwhile() -> None:
    """A word that waited for copies when its session was fenced is judged all the same, and frees the closed grant."""
    driver, session, granted = granted_room()
    copies = [arrive(driver, session, granted[session], index) for index in range(5)]
    driver.ready(session, "r", granted[session])
    driver.wait(13)
    for copy in copies:
        driver.copied(copy)
    assert driver.live_grants() == []
    again = driver.join(planes=("zmq",))
    granted = driver.grant([again], "r")
    for index in range(5):
        driver.copied(arrive(driver, again, granted[again], index))
    assert len(found(driver.ready(again, "r", granted[again]), ScatterChunk)) == 1


def test_corrupt_payload_is_sent_again_from_the_start() -> None:
    """A slice that fails its checksum starts its next attempt with no piece taken."""
    driver, session, granted = granted_room()
    for index in range(5):
        driver.copied(arrive(driver, session, granted[session], index))
    (scatter,) = found(driver.ready(session, "r", granted[session]), ScatterChunk)
    driver.scattered(scatter, bad=(WriterKey(0, 0),))
    for index in range(5):
        driver.copied(arrive(driver, session, granted[session], index, attempt=2))
    assert len(found(driver.ready(session, "r", granted[session], attempt=2), ScatterChunk)) == 1
