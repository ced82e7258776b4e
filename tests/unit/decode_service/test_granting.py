"""``STAGING_REQ``: late grants, repeats, every refusal, and requests that come before their room."""

import pytest

from decode_service.outputs import ScatterChunk
from protocol.messages import GrantStatus, StagingReq, StagingRsp, WatermarkUpdate
from tests.unit.decode_service.driver import CHUNK_TOKENS, Driver, ends, found, messages, only, rank, told


def status(answer: StagingRsp | None) -> GrantStatus | None:
    """Of an answer, if there is one."""
    return answer.status if answer is not None else None


def two_writers(**changes: object) -> tuple[Driver, str, str]:
    """Prefill TP 2 to decode TP 1: both prefill ranks write each chunk."""
    driver = Driver(2, **changes)  # type: ignore[arg-type]
    return driver, driver.join(0), driver.join(1)


def test_grant_waits_for_the_last_writer() -> None:
    """The first writer hears ``pending`` and nothing is allocated; the second one's request grants both their slices."""
    driver, a, b = two_writers()
    driver.register("r")
    first = driver.ask(a, "r")
    assert status(first) is GrantStatus.PENDING
    assert driver.allocator.live_count == 0
    outputs = driver.ask_all(b, "r")
    granted = {answer.session: answer.grant for answer in messages(outputs, StagingRsp)}
    assert {s: (g.offset, g.round, g.end, g.writer_offset, g.writer_bytes) for s, g in granted.items() if g} == {
        a: (0, 0, 80, 0, 40),
        b: (0, 0, 80, 40, 40),
    }
    assert driver.allocator.live_count == 1


def test_one_writer_is_granted_at_once() -> None:
    """Prefill TP 1 to decode TP 2: each decode rank has one writer, so its request is the last one."""
    driver = Driver(1, rank(2, 1))
    session = driver.join(0)
    driver.register("r")
    answer = driver.ask(session, "r")
    assert answer is not None
    assert answer.grant is not None
    assert (answer.status, answer.grant.end, answer.grant.writer_bytes) == (GrantStatus.GRANTED, 40, 40)


@pytest.mark.parametrize("repeats", [1, 5])
def test_repeats_get_the_same_grant(repeats: int) -> None:
    """A request repeated because its answer was lost is answered from the record, without a second allocation."""
    driver, a, b = two_writers()
    driver.register("r")
    granted = driver.grant([a, b], "r")
    for session in (a, b) * repeats:
        answer = driver.ask(session, "r")
        assert answer is not None
        assert (answer.status, answer.grant) == (GrantStatus.GRANTED, granted[session])
    assert driver.allocator.live_count == 1


def test_pending_repeats_allocate_nothing() -> None:
    """A writer that asks over and over while the other is missing never makes a grant by itself."""
    driver, a, _ = two_writers()
    driver.register("r")
    assert [status(driver.ask(a, "r")) for _ in range(5)] == [GrantStatus.PENDING] * 5
    assert driver.allocator.live_count == 0


def test_writer_that_wrote_is_told_to_wait() -> None:
    """After its accepted word a repeated request says ``pending``: a grant would ask it to write again."""
    driver, a, b = two_writers()
    driver.register("r")
    granted = driver.grant([a, b], "r")
    driver.ready(a, "r", granted[a])
    assert status(driver.ask(a, "r")) is GrantStatus.PENDING
    assert status(driver.ask(b, "r")) is GrantStatus.GRANTED


def test_request_after_the_scatter_is_done() -> None:
    """A late request for a consumed chunk allocates nothing and says ``done``, while the room lives and after."""
    driver, a, b = two_writers()
    driver.register("r", 2 * CHUNK_TOKENS)
    driver.move([a, b], "r", 0)
    assert status(driver.ask(a, "r", 0)) is GrantStatus.DONE
    assert ends(driver.move([a, b], "r", 1)) == [("r", "")]
    assert status(driver.ask(a, "r", 0)) is GrantStatus.DONE
    assert driver.allocator.live_count == 0


def test_request_for_a_failed_room_is_aborted() -> None:
    """A tombstone answers ``aborted`` with the reason, and grants nothing."""
    driver, a, _ = two_writers()
    driver.register("r")
    driver.do(driver.handler.abort_room("r", "the engine changed its mind", driver.now))
    answer = driver.ask(a, "r")
    assert answer is not None
    assert (answer.status, answer.message) == (GrantStatus.ABORTED, "the engine changed its mind")


def test_request_while_a_failed_room_ends_is_aborted() -> None:
    """A room that has failed but still has a copy of ours running grants nothing either."""
    driver, a, b = two_writers()
    driver.register("r", 2 * CHUNK_TOKENS)
    scatter = driver.write(driver.grant([a, b], "r"), "r")
    assert ends(driver.do(driver.handler.abort_room("r", "enough", driver.now))) == []
    assert status(driver.ask(a, "r", 1)) is GrantStatus.ABORTED
    assert ends(driver.scattered(scatter)) == [("r", "aborted")]


@pytest.mark.parametrize(
    ("chunk", "start", "tokens", "field"),
    [
        pytest.param(10**9, 0, 4, "chunk", id="huge index"),
        pytest.param(2, 8, 4, "chunk", id="one past the last"),
        pytest.param(0, 1, 4, "token_start", id="off the grid"),
        pytest.param(0, 0, 8, "token_start", id="over the edge of the chunk"),
        pytest.param(1, 4, 4, "token_start", id="past the room's last token"),
        pytest.param(0, 0, 3, "token_start", id="short of the chunk"),
        pytest.param(1, 0, 4, "token_start", id="another chunk's tokens"),
        pytest.param(0, 10**9, 4, "token_start", id="huge start"),
    ],
)
def test_indices_off_the_grid_are_invalid(chunk: int, start: int, tokens: int, field: str) -> None:
    """Whatever index a frame carries, it is compared with the room and sizes nothing; the room goes on."""
    driver, a, b = two_writers()
    driver.register("r", 6)
    answer = driver.ask(a, "r", chunk, start=start, tokens=tokens)
    assert answer is not None
    assert answer.status is GrantStatus.INVALID
    assert answer.message.startswith(field)
    room = driver.handler.state.rooms.live("r")
    assert room is not None
    assert (room.chunks, len(room.scattered)) == ({}, 2)
    driver.grant([a, b], "r", 1)


def test_writers_that_disagree_never_share_a_grant() -> None:
    """The second writer's other idea of the tokens is refused, and the first one goes on waiting."""
    driver, a, b = two_writers()
    driver.register("r")
    assert status(driver.ask(a, "r")) is GrantStatus.PENDING
    assert status(driver.ask(b, "r", start=0, tokens=3)) is GrantStatus.INVALID
    assert driver.allocator.live_count == 0
    assert status(driver.ask(b, "r")) is GrantStatus.GRANTED


def test_foreign_group_is_invalid() -> None:
    """A room belongs to the prefill group that it was registered for."""
    driver, a, b = two_writers()
    stranger = driver.join(0, group="h")
    driver.register("r")
    assert status(driver.ask(stranger, "r")) is GrantStatus.INVALID
    driver.grant([a, b], "r")


def test_rank_without_a_slice_is_invalid() -> None:
    """Prefill TP 2 to decode TP 2: rank 0 has nothing for decode rank 1, and its request joins nothing."""
    driver = Driver(2, rank(2, 1))
    other, writer = driver.join(0), driver.join(1)
    driver.register("r")
    assert status(driver.ask(other, "r")) is GrantStatus.INVALID
    assert status(driver.ask(writer, "r")) is GrantStatus.GRANTED


def test_oversized_fails_that_room_only() -> None:
    """A chunk larger than the ring fails its room for good; the next room of the same sessions succeeds."""
    driver, a, b = two_writers(ring=60)
    driver.register("big")
    driver.register("fits", 3)
    driver.ask(a, "big")
    outputs = driver.ask_all(b, "big")
    assert {answer.session: answer.status for answer in messages(outputs, StagingRsp)} == dict.fromkeys(
        (a, b), GrantStatus.OVERSIZED
    )
    assert "needs 80 bytes and the ring has 60" in messages(outputs, StagingRsp)[0].message
    assert ends(outputs) == [("big", "oversized")]
    again = driver.ask(a, "big")
    assert again is not None
    assert again.status is GrantStatus.ABORTED
    assert "make the ring larger" in again.message
    assert ends(driver.move([a, b], "fits")) == [("fits", "")]
    assert driver.count("sessions_fenced") == 0


def test_whole_ring_is_granted() -> None:
    """A chunk as large as the ring is not oversized."""
    driver, a, b = two_writers(ring=80)
    driver.register("r")
    assert driver.grant([a, b], "r")[b].end == 80


class TestBusy:
    """The limit of chunks in flight bounds what a session may open, never what it may join."""

    def test_full_session_waits(self) -> None:
        """Beyond the limit a request is ``busy``; when a chunk is scattered the next is taken."""
        driver = Driver(1, max_chunks_in_flight=2, ring=1000)
        session = driver.join()
        driver.register("r", 4 * CHUNK_TOKENS)
        granted = driver.grant([session], "r", 0)
        driver.grant([session], "r", 1)
        assert status(driver.ask(session, "r", 2)) is GrantStatus.BUSY
        assert status(driver.ask(session, "r", 1)) is GrantStatus.GRANTED
        driver.scattered(driver.write(granted, "r", 0))
        assert status(driver.ask(session, "r", 2)) is GrantStatus.GRANTED

    def test_full_sessions_join_each_other(self) -> None:
        """Two writers, each full of rooms that wait for the other, both get through: joining is always allowed."""
        driver, a, b = two_writers(max_chunks_in_flight=2, ring=1000)
        for room in ("a1", "a2", "b1", "b2"):
            driver.register(room)
        for room in ("a1", "a2"):
            assert status(driver.ask(a, room)) is GrantStatus.PENDING
        for room in ("b1", "b2"):
            assert status(driver.ask(b, room)) is GrantStatus.PENDING
        driver.register("more")
        assert status(driver.ask(a, "more")) is GrantStatus.BUSY
        assert status(driver.ask(b, "a1")) is GrantStatus.GRANTED
        assert status(driver.ask(a, "b1")) is GrantStatus.GRANTED

    def test_draining_grants_nothing_new(self) -> None:
        """A draining rank refuses new chunks with ``busy`` and lets a begun one come to its end."""
        driver, a, b = two_writers()
        driver.register("r", 2 * CHUNK_TOKENS)
        driver.ask(a, "r", 0)
        driver.do(driver.handler.drain(driver.now))
        assert status(driver.ask(a, "r", 1)) is GrantStatus.BUSY
        assert status(driver.ask(b, "r", 0)) is GrantStatus.GRANTED

    def test_limit_is_free_again_after_an_abort(self) -> None:
        """Chunks of a room that failed count no more."""
        driver = Driver(1, max_chunks_in_flight=1)
        session = driver.join()
        driver.register("r")
        driver.register("s")
        driver.grant([session], "r")
        assert status(driver.ask(session, "s")) is GrantStatus.BUSY
        driver.abort(session, "r")
        assert status(driver.ask(session, "s")) is GrantStatus.GRANTED


class TestParking:
    """Requests that come before the engine has registered their room."""

    def test_granted_when_the_room_comes(self) -> None:
        """A request 10 ms before its room is answered when the room comes."""
        driver, a, b = two_writers()
        assert driver.ask(a, "r") is None
        assert driver.ask(b, "r") is None
        driver.wait(0.01)
        outputs = driver.register("r")
        assert [answer.status for answer in messages(outputs, StagingRsp)] == [
            GrantStatus.PENDING,
            GrantStatus.GRANTED,
            GrantStatus.GRANTED,
        ]
        driver.wait(20, alive=[a, b])
        assert driver.count("requests_unknown_room") == 0

    def test_unknown_room_after_the_wait(self) -> None:
        """A room that nobody registers is ``unknown_room`` after ``park_s``, once per request, and leaves nothing."""
        driver, a, _ = two_writers()
        assert [driver.ask(a, "r") for _ in range(3)] == [None, None, None]
        assert messages(driver.wait(4.9, alive=[a]), StagingRsp) == []
        answer = only(driver.wait(0.2), StagingRsp)
        assert (answer.session, answer.room, answer.status) == (a, "r", GrantStatus.UNKNOWN_ROOM)
        assert "within 5 s" in answer.message
        assert len(driver.handler.state.parking) == 0

    def test_bounded_per_session(self) -> None:
        """One session cannot park more than its share, and others do not feel it."""
        driver, a, b = two_writers(max_parked_per_session=2)
        assert [status(driver.ask(a, f"r{n}")) for n in range(3)] == [None, None, GrantStatus.BUSY]
        assert driver.ask(b, "r2") is None
        assert len(driver.handler.state.parking) == 3

    def test_dies_with_its_session(self) -> None:
        """A request of a session that left is not answered, and does not make a grant when the room comes."""
        driver, a, b = two_writers()
        driver.ask(a, "r")
        driver.ask(b, "r")
        driver.leave(a)
        assert len(driver.handler.state.parking) == 1
        outputs = driver.register("r")
        assert [(answer.session, answer.status) for answer in messages(outputs, StagingRsp)] == [(b, GrantStatus.PENDING)]

    def test_goes_when_its_prefill_gives_the_room_up(self) -> None:
        """It takes no place from later rooms, and its time runs out unheard."""
        driver, a, b = two_writers(max_parked_per_session=1)
        driver.ask(a, "r")
        driver.ask(b, "r")
        driver.abort(a, "r")
        assert len(driver.handler.state.parking) == 1
        assert driver.ask(a, "later") is None
        told_after = messages(driver.wait(6, alive=[a, b]), StagingRsp)
        assert [(answer.session, answer.room) for answer in told_after] == [(b, "r"), (a, "later")]

    def test_index_is_judged_when_the_room_comes(self) -> None:
        """A parked index of 10^9 costs one record and is ``invalid`` once there is a room to compare it with."""
        driver, a, _ = two_writers()
        assert driver.ask(a, "r", 10**9) is None
        assert only(driver.register("r"), StagingRsp).status is GrantStatus.INVALID


def test_fenced_writers_request_does_not_count() -> None:
    """A grant needs live requests: the one of a writer that fell silent is dropped with its session."""
    driver, a, b = two_writers()
    driver.register("r")
    driver.ask(a, "r")
    driver.wait(13, alive=[b])
    assert status(driver.ask(b, "r")) is GrantStatus.PENDING
    again = driver.join(0)
    assert again != a
    assert status(driver.ask(again, "r")) is GrantStatus.GRANTED


def test_every_answer_carries_the_watermark() -> None:
    """The watermark rides in each answer, so a lost ``WATERMARK`` heals with the next request."""
    driver, a, b = two_writers()
    driver.register("r", 2 * CHUNK_TOKENS)
    driver.move([a, b], "r", 0)
    answer = driver.ask(a, "r", 1)
    assert answer is not None
    assert answer.watermark == driver.watermark == (1, 0)


def test_grants_overcommit_and_wait_their_turn() -> None:
    """Grants are made rounds ahead; each becomes ready as the one before it is scattered."""
    driver = Driver(1)
    session = driver.join()
    driver.register("r", 3 * CHUNK_TOKENS)
    granted = [driver.grant([session], "r", chunk) for chunk in range(3)]
    assert [slice_[session].round for slice_ in granted] == [0, 1, 2]
    for chunk, slices in enumerate(granted):
        assert [grant.ready for grant in driver.handler.state.grants] == [True] + [False] * (2 - chunk)
        outputs = driver.scattered(driver.write(slices, "r", chunk)) + driver.tick()
        assert [message.round for message in messages(outputs, WatermarkUpdate)] == [chunk + 1]


def test_request_says_nothing_to_other_sessions() -> None:
    """The answer to one writer goes to that writer."""
    driver, a, b = two_writers()
    driver.register("r")
    assert list(told(driver.ask_all(a, "r"), b)) == []


def test_scatter_names_tokens_of_the_chunk() -> None:
    """The last, shorter chunk of a room is granted and scattered with its own tokens."""
    driver, a, b = two_writers()
    driver.register("r", 6)
    granted = driver.grant([a, b], "r", 1)
    assert granted[a].writer_bytes == 20
    scatter = driver.write(granted, "r", 1)
    assert (scatter.token_start, scatter.num_tokens) == (4, 2)
    assert found([scatter], ScatterChunk) == [scatter]


def test_request_is_read_from_any_route() -> None:
    """A peer that reconnected is answered where it speaks from now."""
    driver, a, _ = two_writers()
    driver.register("r")
    outputs = driver.hear(StagingReq(a, "r", 0, 0, 4), b"new-route")
    assert [send.route for send in outputs if hasattr(send, "route")] == [b"new-route"]
