"""A decode engine's worker: every load is reported exactly once, with its blocks where it failed, however it ends."""

import pytest

from integrations.vllm.consumer_worker import ConsumerWorker
from integrations.vllm.orders import DISCARD, ConsumerOrders, Load, Release
from integrations.vllm.reports import Due
from runtime.engine_protocol import EngineError
from runtime.logs import logger
from tests.unit.integrations.vllm.fakes import FakeHalf

LOAD = Load("r", "room", "group", 10, (DISCARD, 7, 3, DISCARD))
NOTHING = Due()
BUSY = ConsumerOrders()
GOOD = Due(received=frozenset({"r"}))
BAD = Due(received=frozenset({"r"}), bad_blocks=frozenset({7, 3}))


def worker(half: FakeHalf) -> ConsumerWorker:
    """Rank 1 of a cache of 100 blocks of four tokens."""
    return ConsumerWorker(half, rank=1, num_blocks=100, block_size=4, timeout_s=5, idle_wait_s=0.001, log=logger())


def begin(half: FakeHalf) -> ConsumerWorker:
    """A worker that has begun the load."""
    subject = worker(half)
    orders = ConsumerOrders([LOAD])
    subject.preempt(orders)
    subject.begin_step(orders)
    subject.layer_saved("layer")
    subject.end_step(orders, broken=False)
    return subject


def test_done() -> None:
    """The room is expected in the blocks, what must not be written goes to pages that do not exist, and its end is reported."""
    half = FakeHalf()
    subject = begin(half)
    body = {"rank": 1, "group": "group", "num_tokens": 10, "pages": (100, 7, 3, 103), "deadline_s": 5}
    assert half.calls == [("register_room", "room", body), ("wait_room", "room", {"rank": 1, "timeout_s": 5})]
    assert subject.take(set(), BUSY) == NOTHING
    half.end("room")
    assert subject.take(set(), BUSY) == GOOD
    assert subject.take(set(), BUSY) == NOTHING


def test_failed() -> None:
    """The blocks are reported as bad together with the request, and only once."""
    half = FakeHalf()
    subject = begin(half)
    half.end("room", "prefill_gone")
    assert subject.take(set(), BUSY) == BAD
    assert subject.take(set(), None) == NOTHING


@pytest.mark.parametrize("code", ["busy", "room_over", "no_pool", "invalid"])
def test_registration_refused(code: str) -> None:
    """A room that was never taken has failed, and nothing waits for it."""
    half = FakeHalf()
    half.refusals["register_room"] = EngineError(code, "because")
    subject = begin(half)
    assert half.names() == ["register_room"]
    assert subject.take(set(), BUSY) == BAD


def test_no_place_for_the_registration() -> None:
    """A half that takes no call at all is a refusal, too."""
    half = FakeHalf()
    half.full.add("register_room")
    assert begin(half).take(set(), BUSY) == BAD


def test_too_late() -> None:
    """Nobody sends in time: the room is given up, and the request reported only when it has really ended."""
    half = FakeHalf()
    subject = begin(half)
    half.break_wait("room", "timeout")
    assert half.names() == ["register_room", "wait_room", "abort_room", "wait_room"]
    assert half.body("wait_room")["timeout_s"] is None
    assert subject.take(set(), BUSY) == NOTHING
    half.end("room", "aborted")
    assert subject.take(set(), BUSY) == BAD


def test_engine_ends_the_request() -> None:
    """An abort gives the room up, once; the report follows its end, without bad blocks: nobody computes with them."""
    half = FakeHalf()
    subject = begin(half)
    assert subject.take({"r", "stranger"}, BUSY) == NOTHING
    assert subject.take({"r"}, BUSY) == NOTHING
    assert half.names() == ["register_room", "wait_room", "abort_room"]
    half.end("room", "aborted")
    assert subject.take(set(), BUSY) == GOOD


def test_end_after_the_report_is_nothing_new() -> None:
    """A request that ends in the usual way, long after its load, gives no room up."""
    half = FakeHalf()
    subject = begin(half)
    half.end("room")
    subject.take(set(), BUSY)
    assert subject.take({"r"}, BUSY) == NOTHING
    assert "abort_room" not in half.names()


def test_service_gone() -> None:
    """A half that has ended may still copy: the report waits until it has let go of the cache. Later loads fail at once."""
    half = FakeHalf()
    subject = begin(half)
    half.break_wait("room", "closed")
    assert subject.take(set(), BUSY) == NOTHING
    subject.pool_closed()
    assert subject.take(set(), BUSY) == BAD
    half.refusals["register_room"] = EngineError("closed", "gone")
    subject.end_step(ConsumerOrders([Load("s", "other", "group", 4, (9,))]), broken=False)
    assert subject.take(set(), BUSY) == Due(frozenset(), frozenset({"s"}), frozenset({9}))


def test_wait_without_place_is_asked_again() -> None:
    """Until the half has said how the room ended, the blocks are its own: the question is put again with the next step."""
    half = FakeHalf()
    half.full.add("wait_room")
    subject = begin(half)
    assert subject.take(set(), BUSY) == NOTHING
    half.full.clear()
    subject.end_step(BUSY, broken=False)
    half.end("room")
    assert subject.take(set(), BUSY) == GOOD


def test_unknown_end_is_a_failure() -> None:
    """A half that does not know the room writes nowhere."""
    half = FakeHalf()
    subject = begin(half)
    half.break_wait("room", "unknown_room")
    assert subject.take(set(), BUSY) == BAD


def test_second_load_of_a_request_is_ignored() -> None:
    """There is one report for each request, whatever is ordered."""
    half = FakeHalf()
    subject = begin(half)
    subject.end_step(ConsumerOrders([LOAD]), broken=False)
    assert half.names().count("register_room") == 1


def test_release_tells_the_prefill_engine() -> None:
    """A room that nobody reads is expected in no block and given up at once; nothing is reported, refused or not."""
    half = FakeHalf()
    subject = worker(half)
    subject.end_step(ConsumerOrders(releases=[Release("room", "group", 10)]), broken=False)
    assert half.names() == ["register_room", "abort_room"]
    assert half.body("register_room")["pages"] == (100, 101, 102)
    half.refusals["register_room"] = EngineError("room_over", "because")
    subject.end_step(ConsumerOrders(releases=[Release("room", "group", 10)]), broken=False)
    assert subject.take({"r"}, ConsumerOrders(is_idle=True)) == NOTHING
