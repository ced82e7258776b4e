"""One table of commands, for the socket and for the same process."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from runtime.commands import Commands, InProcessCalls
from runtime.engine_protocol import Body, EngineError
from runtime.loop import EventLoop


def refuse(body: Body) -> Body:
    """A command that refuses."""
    raise EngineError("invalid", f"no {sorted(body)}")


def table(held: "Future[Body]") -> Commands:
    """``echo``, ``refuse`` and ``hold``."""
    return Commands({"echo": lambda body: body, "refuse": refuse, "hold": lambda _: held})


@pytest.fixture
def loop() -> Iterator[EventLoop]:
    """A loop on a thread of its own."""
    made = EventLoop()
    thread = threading.Thread(target=made.run)
    thread.start()
    yield made
    made.stop()
    thread.join(30)
    made.close()


def test_answers_refusals_and_unknown_names() -> None:
    """An answer may come at once or later; refusals and unknown commands come through the future."""
    held: Future[Body] = Future()
    commands = table(held)
    assert commands.execute("echo", {"a": 1}).result(0) == {"a": 1}
    assert commands.execute("hold", {}) is held
    with pytest.raises(EngineError, match=r"no \['a'\]"):
        commands.execute("refuse", {"a": 1}).result(0)
    with pytest.raises(EngineError, match="expected one of echo, hold, refuse"):
        commands.execute("dance", {}).result(0)


def test_calls_from_another_thread(loop: EventLoop) -> None:
    """A call is carried out on the loop's thread; one over the bound is refused with it; closing fails what is open."""
    held: Future[Body] = Future()
    calls = InProcessCalls(loop, table(held), max_in_flight=1)
    assert calls.call("echo", a=1).result(30) == {"a": 1}
    with pytest.raises(EngineError, match="no"):
        calls.call("refuse").result(30)
    waiting = calls.call("hold")
    with pytest.raises(EngineError) as caught:
        calls.call("echo")
    assert (caught.value.code, caught.value.limit) == ("busy", 1)
    calls.close()
    with pytest.raises(EngineError, match="stopped before"):
        waiting.result(30)
    with pytest.raises(EngineError, match="closed"):
        calls.call("echo")
    held.set_result({})


def test_a_call_that_was_given_up_is_left_alone(loop: EventLoop) -> None:
    """Cancelling a future does not disturb the command's answer."""
    held: Future[Body] = Future()
    calls = InProcessCalls(loop, table(held), max_in_flight=5)
    waiting = calls.call("hold")
    calls.call("echo").result(30)
    assert waiting.cancel()
    held.set_result({})
    assert calls.call("echo", b=2).result(30) == {"b": 2}
