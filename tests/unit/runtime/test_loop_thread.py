"""A loop's thread ends in order or broken, and cleans up either way."""

import structlog

from runtime.loop import EventLoop
from runtime.loop_thread import CRASHED, STOPPED, LoopThread


def break_down() -> None:
    """A fault."""
    raise ZeroDivisionError


def test_an_orderly_end_is_0() -> None:
    """The clean-up runs on the loop's thread once the loop has stopped."""
    loop = EventLoop()
    cleaned: list[bool] = []
    thread = LoopThread(loop, "test-loop", lambda: cleaned.append(thread.runs_here))
    thread.start()
    loop.stop()
    assert thread.join() == STOPPED
    assert cleaned == [True]
    assert not thread.runs_here
    loop.close()


def test_a_fault_is_logged_and_is_1() -> None:
    """What a callback raises ends the loop, is written to the log with its trace, and still cleans up."""
    loop = EventLoop()
    cleaned: list[bool] = []
    crashed: list[int] = []
    thread = LoopThread(loop, "test-loop", lambda: cleaned.append(True), lambda: crashed.append(len(cleaned)))
    loop.call_soon_threadsafe(break_down)
    with structlog.testing.capture_logs() as lines:
        thread.start()
        assert thread.join() == CRASHED
    assert cleaned == [True]
    assert crashed == [0], "the crash is looked at before anything is cleaned up"
    assert [line["event"] for line in lines] == ["loop_crashed"]
    loop.close()
