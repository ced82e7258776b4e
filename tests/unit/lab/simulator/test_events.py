"""Virtual time runs in one order, and never for ever."""

import pytest

from lab.simulator import events
from lab.simulator.events import EventQueue
from lab.simulator.memory import ViolationError


def test_equal_times_run_in_the_order_of_adding() -> None:
    """Time first, then who came first; the past is now."""
    queue, seen = EventQueue(), list[str]()
    queue.at(2.0, lambda: seen.append("late"))
    queue.at(1.0, lambda: seen.append("one"))
    queue.at(1.0, lambda: seen.append("two"))
    while queue.step(5.0):
        pass
    assert seen == ["one", "two", "late"]
    assert queue.now == 5.0
    queue.at(1.0, lambda: seen.append("past"))
    assert queue.step(5.0)
    assert queue.now == 5.0


def test_a_world_that_goes_round_in_circles_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps without end are reported as such."""
    monkeypatch.setattr(events, "MAX_STEPS", 10)
    queue = EventQueue()

    def again() -> None:
        queue.after(0.0, again)

    again()
    for _ in range(10):
        assert queue.step(1.0)
    with pytest.raises(ViolationError, match="stuck: 10 steps"):
        queue.step(1.0)
