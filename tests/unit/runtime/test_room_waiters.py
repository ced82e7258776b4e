"""Engines that wait for rooms."""

from concurrent.futures import Future

import pytest

from runtime.engine_protocol import Body, EngineError
from runtime.room_waiters import RoomKey, RoomOutcome, RoomWaiters

KEY = RoomKey(3, "room")


def test_everybody_who_waits_is_told_once() -> None:
    """All waiters of a room get its outcome; those of other rooms go on waiting; later waiters are not told of the past."""
    waiters = RoomWaiters()
    first, second, other = Future[Body](), Future[Body](), Future[Body]()
    waiters.add(KEY, first, None)
    waiters.add(KEY, second, 10.0)
    waiters.add(RoomKey(4, "room"), other, None)
    outcome = RoomOutcome("room", 3, False, "aborted", "why")
    waiters.resolve(KEY, outcome)
    waiters.resolve(KEY, outcome)
    assert RoomOutcome.from_body(first.result(0)) == RoomOutcome.from_body(second.result(0)) == outcome
    assert not other.done()
    assert waiters.next_deadline() is None


def test_deadlines_are_kept_in_order() -> None:
    """The earliest deadline is the next one; at its time that waiter alone is refused with ``timeout``."""
    waiters = RoomWaiters()
    late, early = Future[Body](), Future[Body]()
    waiters.add(KEY, late, 20.0)
    waiters.add(KEY, early, 10.0)
    assert waiters.next_deadline() == 10.0
    waiters.tick(9.9)
    assert not early.done()
    waiters.tick(10.0)
    with pytest.raises(EngineError, match="timeout"):
        early.result(0)
    assert not late.done()
    assert waiters.next_deadline() == 20.0
    waiters.flush(10.0)


def test_nobody_is_left_hanging_at_the_end() -> None:
    """When the daemon stops every waiter is refused, and no deadline remains."""
    waiters = RoomWaiters()
    future = Future[Body]()
    waiters.add(KEY, future, 10.0)
    waiters.fail_all(EngineError("closed", "over"))
    with pytest.raises(EngineError, match="over"):
        future.result(0)
    assert waiters.next_deadline() is None
