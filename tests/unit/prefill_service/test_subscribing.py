"""Answers to subscriptions: which count, what a refusal means for rooms, and what becomes of a plane that does not open."""

from dataclasses import replace
from typing import Any

import pytest

from prefill_service.outputs import ClosePlane, Disconnect, OpenPlane, Output, RoomFailed
from prefill_service.rooms import RoomRefused
from protocol.errors import LocalProtocolError
from protocol.layout import LayoutDifference
from protocol.messages import (
    Error,
    ErrorCode,
    Goodbye,
    GrantStatus,
    Refused,
    RefusedCode,
    StagingReq,
    Subscribe,
    Subscribed,
    Unsubscribe,
)
from tests.unit.prefill_service.bench import RING, Bench, of_type, rank_layout, sent


def subscribing() -> tuple[Bench, Subscribe]:
    """A machine whose first subscription waits for its answer."""
    bench = Bench()
    (subscribe,) = sent(bench.handler.add_peer("d0", bench.now), Subscribe)
    return bench, subscribe


def refuse(bench: Bench, subscribe: Subscribe, code: RefusedCode, *diff: LayoutDifference) -> tuple[Output, ...]:
    """Answer with a refusal."""
    return bench.hear("d0", Refused(subscribe.attempt, code, "no", diff))


def test_accepted_session_opens_its_plane_and_then_asks() -> None:
    """The plane is opened with all that D said; chunks that waited are asked for once it is open, not before."""
    bench, subscribe = subscribing()
    bench.whole_room("r")
    answer = bench.answer(subscribe)
    out = bench.hear("d0", answer)
    assert of_type(out, OpenPlane) == [OpenPlane("d0", answer.session, "shm", answer.region, RING, answer.layout)]
    assert not sent(out, StagingReq)
    assert sent(bench.handler.plane_opened("d0", answer.session, bench.now), StagingReq) == [
        StagingReq(answer.session, "r", 0, 0, 10)
    ]


def test_answers_to_other_attempts_and_lives_are_ignored() -> None:
    """An answer to an older attempt or to another incarnation changes nothing."""
    bench, subscribe = subscribing()
    (latest,) = sent(bench.run(0.2), Subscribe)
    right = bench.answer(latest)
    assert bench.hear("d0", replace(right, attempt=subscribe.attempt)) == ()
    assert bench.hear("d0", replace(right, incarnation=999)) == ()
    assert bench.hear("d0", Refused(subscribe.attempt, RefusedCode.SUPERSEDED, "old news")) == ()
    assert bench.counters["subscribe_answers_ignored"] == 3
    assert of_type(bench.hear("d0", right), OpenPlane)


def test_repeated_answer_keeps_the_session() -> None:
    """The same session again is the same session: nothing is opened, asked or lost."""
    bench, subscribe = subscribing()
    answer = bench.answer(subscribe)
    bench.hear("d0", answer)
    bench.handler.plane_opened("d0", answer.session, bench.now)
    bench.whole_room("r")
    assert bench.hear("d0", answer) == ()
    assert bench.state_of() == "requested"


def test_another_session_ends_the_former_one() -> None:
    """If D has minted another session, the former one is given up as stopped and the next one is asked for."""
    bench, subscribe = subscribing()
    first = bench.answer(subscribe)
    bench.hear("d0", first)
    bench.handler.plane_opened("d0", first.session, bench.now)
    bench.now += 1.0
    out = bench.hear("d0", bench.answer(subscribe))
    assert of_type(out, ClosePlane) == [ClosePlane("d0", first.session)]
    assert [again.stopped for again in sent(out, Subscribe)] == [first.session]


@pytest.mark.parametrize(
    "code", [RefusedCode.LAYOUT, RefusedCode.VERSION, RefusedCode.WRONG_RANK, RefusedCode.NO_PLANE, RefusedCode.NOT_ALLOWED]
)
def test_mismatch_fails_rooms_at_once_with_the_diff(code: RefusedCode) -> None:
    """What does not pass by waiting fails the rooms that go there and names every difference; D is asked again all the same."""
    bench, subscribe = subscribing()
    bench.whole_room("r")
    out = refuse(bench, subscribe, code, LayoutDifference("tp_size", "6", "4"), LayoutDifference("layers", "2", "3"))
    text = "d0: no; tp_size: prefill 6, decode 4; layers: prefill 2, decode 3"
    assert out == (RoomFailed("r", code.value, text),)
    with pytest.raises(RoomRefused, match="tp_size: prefill 6, decode 4") as refused:
        bench.submit("other", 3)
    assert refused.value.code == code.value
    assert sent(bench.run(2.0), Subscribe)


@pytest.mark.parametrize("code", [RefusedCode.TOO_MANY_SESSIONS, RefusedCode.DRAINING, RefusedCode.WRITER_TAKEN])
def test_passing_refusal_leaves_rooms_waiting(code: RefusedCode) -> None:
    """What passes by itself costs rooms nothing but time: they go on when a session is granted."""
    bench, subscribe = subscribing()
    bench.whole_room("r")
    assert refuse(bench, subscribe, code) == ()
    again = bench.run(2.0)
    assert sent(bench.accept("d0", again), StagingReq)


def test_superseded_ends_this_life() -> None:
    """A newer life of this rank has come: every room fails, every peer is left, and nothing is ever asked again."""
    bench, subscribe = subscribing()
    session = bench.connect("d1", 1)
    bench.whole_room("r", decode=("d1",))
    out = bench.hear("d0", Refused(subscribe.attempt, RefusedCode.SUPERSEDED, "a newer life"))
    assert of_type(out, RoomFailed) == [RoomFailed("r", "superseded", "d0: a newer life")]
    assert [message.session for message in sent(out, Unsubscribe, "d1")] == [session]
    assert {gone.peer for gone in of_type(out, Disconnect)} == {"d0", "d1"}
    assert bench.run(1000.0) == ()
    assert bench.is_stopped()
    with pytest.raises(RoomRefused) as refused:
        bench.submit("later", 3)
    assert refused.value.code == "superseded"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"version": 2}, "version"),
        ({"plane": "mooncake"}, "no_plane"),
        ({"layout": rank_layout(0, 2, heads=4)}, "layout"),
    ],
)
def test_session_that_cannot_be_is_not_taken(change: dict[str, Any], code: str) -> None:
    """A session with a version, plane or layout that we cannot serve fails the rooms instead of breaking the machine."""
    bench, subscribe = subscribing()
    bench.whole_room("r")
    out = bench.hear("d0", bench.answer(subscribe, **change))
    assert [failed.code for failed in of_type(out, RoomFailed)] == [code]
    assert not of_type(out, OpenPlane)


def test_other_rank_than_expected_is_not_taken() -> None:
    """If another decode rank answers at this endpoint, the rooms that go there fail."""
    bench = Bench()
    (subscribe,) = sent(bench.handler.add_peer("d0", bench.now, decode_rank=1), Subscribe)
    bench.whole_room("r")
    out = bench.hear("d0", bench.answer(subscribe, rank=0))
    assert [failed.code for failed in of_type(out, RoomFailed)] == ["wrong_rank"]


def miss(bench: Bench, subscribe: Subscribe, reason: str, **changes: Any) -> tuple[Subscribed, tuple[Output, ...]]:
    """Grant a session whose plane does not open: the answer, and what the machine wants then."""
    answer = bench.answer(subscribe, **changes)
    bench.hear("d0", answer)
    return answer, bench.handler.plane_failed("d0", answer.session, reason, bench.now)


def test_plane_that_does_not_open_is_tried_once_more_and_then_dropped() -> None:
    """The same offer is made once more at once, then the next plane is negotiated at once, and rooms do not notice."""
    bench, subscribe = subscribing()
    bench.whole_room("r")
    first, out = miss(bench, subscribe, "no such segment")
    (again,) = sent(out, Subscribe)
    assert (again.planes, again.stopped) == (("shm", "zmq"), first.session)
    second, out = miss(bench, again, "no such segment")
    (other,) = sent(out, Subscribe)
    assert (other.planes, other.stopped) == (("zmq",), second.session)
    assert not of_type(out, ClosePlane)
    assert sent(bench.accept("d0", out), StagingReq)


def test_regions_that_go_one_after_the_other_cost_no_plane() -> None:
    """An answer may name a region that was replaced while it travelled: each new epoch gets its own first try."""
    bench, subscribe = subscribing()
    bench.whole_room("r")
    out: tuple[Output, ...] = ()
    for epoch in range(5):
        _, out = miss(bench, subscribe, "no such segment", epoch=100 + epoch)
        (subscribe,) = sent(out, Subscribe)
        assert subscribe.planes == ("shm", "zmq")
        assert not of_type(out, RoomFailed)
    assert sent(bench.accept("d0", out), StagingReq)


def test_no_plane_left_fails_rooms_and_tries_all_again_slowly() -> None:
    """With the last plane the rooms fail, the reasons of all planes are named, and the full offer is made again after 2 s."""
    bench, subscribe = subscribing()
    bench.whole_room("r")
    for reason in ("no segment", "no segment", "no route"):
        _, out = miss(bench, subscribe, reason)
        (subscribe,) = sent(out, Subscribe)
        assert not of_type(out, RoomFailed)
    _, out = miss(bench, subscribe, "no route")
    assert of_type(out, RoomFailed) == [RoomFailed("r", "plane_failed", "d0: plane shm: no segment; plane zmq: no route")]
    assert not sent(bench.run(1.9), Subscribe)
    (third,) = sent(bench.run(0.2), Subscribe)
    assert third.planes == ("shm", "zmq")
    with pytest.raises(RoomRefused, match="no route"):
        bench.submit("other", 3)


def test_plane_is_offered_again_after_a_session_that_worked() -> None:
    """A plane that once failed gets its chance again with the next region."""
    bench, subscribe = subscribing()
    _, out = miss(bench, subscribe, "no segment")
    (again,) = sent(out, Subscribe)
    _, out = miss(bench, again, "no segment")
    bench.accept("d0", out)
    bench.now += 1.0
    out = bench.hear("d0", Error(bench.sessions["d0"], ErrorCode.UNKNOWN_SESSION, "who?", "HEARTBEAT"))
    assert [again.planes for again in sent(out, Subscribe)] == [("shm", "zmq")]


def test_unexpected_plane_report_is_our_bug() -> None:
    """The shell may only report on a plane that it was told to open."""
    bench = Bench()
    with pytest.raises(LocalProtocolError):
        bench.handler.plane_opened("d0", "s", bench.now)
    session = bench.connect()
    with pytest.raises(LocalProtocolError):
        bench.handler.plane_failed("d0", session, "twice", bench.now)


def test_unknown_session_error_counts_only_for_the_current_one() -> None:
    """An error about another session, or about a malformed frame, ends nothing."""
    bench = Bench()
    session = bench.connect()
    bench.now += 1.0
    assert bench.hear("d0", Error("other", ErrorCode.UNKNOWN_SESSION, "who?", "HEARTBEAT")) == ()
    assert bench.hear("d0", Error(session, ErrorCode.MALFORMED, "what?", "ABORT")) == ()
    out = bench.hear("d0", Error(session, ErrorCode.UNKNOWN_SESSION, "who?", "HEARTBEAT"))
    assert [again.stopped for again in sent(out, Subscribe)] == [session]


def test_decode_in_another_life_fails_what_the_former_one_had_answered() -> None:
    """Rooms that the former process knew fail with its restart; those it never answered for go on in the new one."""
    bench = Bench()
    session = bench.connect()
    bench.whole_room("known")
    bench.respond("d0", "known", 0, GrantStatus.PENDING)
    bench.whole_room("unknown")
    bench.now += 1.0
    lost = bench.hear("d0", Error(session, ErrorCode.UNKNOWN_SESSION, "who?", "STAGING_REQ"))
    out = bench.accept("d0", lost, decode_incarnation=6, epoch=78)
    assert [(failed.room, failed.code) for failed in of_type(out, RoomFailed)] == [("known", "decode_restarted")]
    assert [request.room for request in sent(out, StagingReq)] == ["unknown"]


def test_new_epoch_of_the_same_life_keeps_every_room() -> None:
    """A replaced region costs the rooms nothing: what was not scattered is asked for again."""
    bench = Bench()
    session = bench.connect()
    bench.written()
    bench.now += 1.0
    lost = bench.hear("d0", Error(session, ErrorCode.UNKNOWN_SESSION, "replaced", "CHUNK_READY"))
    out = bench.accept("d0", lost, epoch=78)
    assert not of_type(out, RoomFailed)
    assert [request.room for request in sent(out, StagingReq)] == ["r"]


def test_lost_session_never_comes_back() -> None:
    """If D still takes a lost session for alive it is told again that this one has stopped, and asked for another."""
    bench = Bench()
    session = bench.connect()
    bench.now += 1.0
    lost = bench.hear("d0", Error(session, ErrorCode.UNKNOWN_SESSION, "who?", "HEARTBEAT"))
    (again,) = sent(lost, Subscribe)
    assert bench.hear("d0", bench.answer(again, session=session)) == ()
    assert bench.counters["lost_sessions_returned"] == 1
    out = bench.run(2.0)
    assert {attempt.stopped for attempt in sent(out, Subscribe)} == {session}
    assert of_type(bench.accept("d0", out), OpenPlane)


def test_lost_session_whose_write_runs_is_not_said_to_be_over() -> None:
    """D returns a session in which a write of ours still runs: it is not taken up, and nothing is claimed about it."""
    bench = Bench(stop_wait_s=3.0)
    session = bench.connect()
    write = bench.writing()
    bench.now += 1.0
    bench.hear("d0", Error(session, ErrorCode.UNKNOWN_SESSION, "who?", "HEARTBEAT"))
    (again,) = sent(bench.run(3.0), Subscribe)
    assert bench.hear("d0", bench.answer(again, session=session)) == ()
    assert {attempt.stopped for attempt in sent(bench.run(3.0), Subscribe)} == {None}
    assert not sent(bench.finish(write), Unsubscribe)
    assert {attempt.stopped for attempt in sent(bench.run(3.0), Subscribe)} == {session}


def test_goodbye_changes_nothing_but_the_mark() -> None:
    """A draining D is asked on as before; that it drains is seen in the snapshot."""
    bench = Bench()
    session = bench.connect()
    bench.whole_room("r")
    assert bench.hear("d0", Goodbye(session, "draining")) == ()
    assert bench.handler.snapshot()["peers"][0]["session"]["draining"]
    assert bench.hear("d0", Goodbye("other", "draining")) == ()
    assert sent(bench.run(0.2), StagingReq)


def test_refusal_after_the_session_was_granted_is_ignored() -> None:
    """An attempt that a session has answered cannot be refused any more."""
    bench, subscribe = subscribing()
    bench.hear("d0", bench.answer(subscribe))
    assert refuse(bench, subscribe, RefusedCode.LAYOUT) == ()
