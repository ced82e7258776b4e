"""A process has a clock, an inbox and lives of its own."""

from lab.simulator.events import EventQueue
from lab.simulator.process import Process


class Echo(Process):
    """Notes what reaches it."""

    def __init__(self, events: EventQueue, rate: float = 1.0) -> None:
        super().__init__("echo", events, rate)
        self.heard: list[str] = []

    def machine_deadline(self) -> float | None:
        """Due at ten by its own clock."""
        return 10.0 if self.heard and "tick" not in self.heard else None

    def tick(self) -> None:
        """Note the time."""
        self.heard.append("tick")


def test_a_stopped_process_hears_everything_later_and_then_looks_at_the_clock() -> None:
    """Order is kept, and the tick comes last."""
    events = EventQueue()
    echo = Echo(events)
    echo.begin_life()
    echo.pause(3.0)
    events.at(1.0, lambda: echo.deliver(lambda: echo.heard.append("one")))
    events.at(2.0, lambda: echo.deliver(lambda: echo.heard.append("two")))
    while events.step(2.5):
        pass
    assert echo.heard == []
    while events.step(3.5):
        pass
    assert echo.heard == ["one", "two", "tick"]


def test_what_was_meant_for_a_former_life_is_dropped() -> None:
    """Death empties the inbox and the calendar."""
    events = EventQueue()
    echo = Echo(events)
    echo.begin_life()
    echo.after(1.0, lambda: echo.heard.append("late"))
    echo.end_life()
    echo.begin_life()
    while events.step(5.0):
        pass
    assert echo.heard == []


def test_deadlines_are_met_on_its_own_clock() -> None:
    """A clock that runs twice as fast reaches ten after five seconds."""
    events = EventQueue()
    echo = Echo(events, rate=2.0)
    echo.begin_life()
    echo.deliver(lambda: echo.heard.append("begin"))
    while events.step(4.9):
        pass
    assert "tick" not in echo.heard
    while events.step(5.1):
        pass
    assert "tick" in echo.heard
