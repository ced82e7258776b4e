"""One loop: fair reading, judging only after reading, and sleep that ends for exactly what it should."""

import os
import threading
from collections.abc import Iterator
from functools import partial

import pytest
import zmq

from runtime.loop import BATCH, MAX_ROUNDS, PAUSE_S, EventLoop


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        """The time it was set to."""
        return self.now


class Recorder:
    """A machine with one deadline that writes down what is done to it."""

    def __init__(self, log: list[str], deadline: float | None = None) -> None:
        self.log = log
        self.deadline = deadline
        self.ticks: list[float] = []

    def next_deadline(self) -> float | None:
        """Its one deadline, until it was ticked."""
        return self.deadline

    def tick(self, now: float) -> None:
        """Write it down; nothing is due any more."""
        self.log.append("tick")
        self.ticks.append(now)
        self.deadline = None

    def flush(self, now: float) -> None:  # noqa: ARG002 - the loop's interface
        """Write it down."""
        self.log.append("flush")


@pytest.fixture
def clock() -> Clock:
    """A clock at 100 s."""
    return Clock()


@pytest.fixture
def loop(clock: Clock) -> Iterator[EventLoop]:
    """A loop over the test's clock, closed at the end."""
    made = EventLoop(clock)
    yield made
    made.close()


def test_sources_are_read_before_machines_are_judged(loop: EventLoop, clock: Clock) -> None:
    """In one turn: what is waiting is read, then posted calls run, then due machines are ticked, then what is owed is sent."""
    log: list[str] = []
    reading, writing = os.pipe()

    def read(limit: int) -> bool:
        log.append(f"read {os.read(reading, limit)!r}")
        return False

    try:
        os.write(writing, b"x")
        loop.add_reader(reading, read)
        loop.add_timed(Recorder(log, clock.now))
        loop.call_soon_threadsafe(lambda: log.append("call"))
        loop.turn()
    finally:
        os.close(reading)
        os.close(writing)
    assert log == ["read b'x'", "call", "tick", "flush"]


def test_a_flood_of_one_source_does_not_hold_up_another(loop: EventLoop) -> None:
    """A source with endless messages is read in batches between those of others, and only so many times in one turn."""
    order: list[str] = []

    def read(name: str, limit: int) -> bool:
        assert limit == BATCH
        order.append(name)
        return name == "flood"

    with zmq.Context() as context, context.socket(zmq.PULL) as flood, context.socket(zmq.PULL) as quiet:
        for name, pull in (("flood", flood), ("quiet", quiet)):
            pull.bind(f"inproc://{name}")
            with context.socket(zmq.PUSH) as push:
                push.connect(f"inproc://{name}")
                push.send(b"")
            loop.add_reader(pull, partial(read, name))
        loop.turn()
        loop.remove_reader(flood)
        loop.remove_reader(quiet)
    assert order.count("flood") == MAX_ROUNDS
    assert "quiet" in order[:2]


def test_a_paused_process_reads_until_quiet_before_it_judges(loop: EventLoop, clock: Clock) -> None:
    """A turn that overslept polls again until nothing arrives, and ticks with a time that is not before the last message."""
    log: list[str] = []
    recorder = Recorder(log, clock.now + 1.0)
    loop.add_timed(recorder)
    heard: list[float] = []

    def later() -> None:
        heard.append(clock.now)
        log.append("late message")

    def stopped() -> None:
        clock.now += 1.0 + 10 * PAUSE_S
        loop.call_soon_threadsafe(later)

    loop.call_soon_threadsafe(stopped)
    loop.turn()
    assert log[:2] == ["late message", "tick"]
    assert recorder.ticks[0] >= heard[0]


def test_no_time_is_judged_by_that_lies_before_a_call_that_ran_meanwhile(
    loop: EventLoop, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call posted after the last look at the sockets takes its time; the machines are then ticked no earlier than that."""
    recorder = Recorder([], clock.now + 1.0)
    loop.add_timed(recorder)
    told: list[float] = []
    serve = loop._serve_ready

    def later() -> None:
        clock.now += 0.1
        told.append(clock.now)

    def serve_and_be_called(sleep_s: float) -> bool:
        heard = serve(sleep_s)
        if not heard and not told:
            loop.call_soon_threadsafe(later)
        return heard

    def stopped() -> None:
        clock.now += 1.0 + 10 * PAUSE_S
        monkeypatch.setattr(loop, "_serve_ready", serve_and_be_called)

    loop.call_soon_threadsafe(stopped)
    loop.turn()
    assert recorder.ticks == told


def test_a_post_from_another_thread_ends_the_sleep() -> None:
    """A loop without deadlines sleeps until a thread posts, runs the post on its own thread, and stops when told."""
    loop = EventLoop()
    ran_on: list[int] = []
    thread = threading.Thread(target=loop.run)
    thread.start()
    loop.call_soon_threadsafe(lambda: ran_on.append(threading.get_ident()))
    loop.stop()
    thread.join(30)
    assert ran_on == [thread.ident]
    loop.close()


def test_a_deadline_ends_the_sleep(clock: Clock) -> None:
    """The sleep lasts no longer than to the earliest deadline, and a deadline in the past means no sleep at all."""
    loop = EventLoop(clock)
    log: list[str] = []
    recorder = Recorder(log, clock.now - 5.0)
    loop.add_timed(recorder)
    loop.turn()
    assert recorder.ticks == [clock.now]
    loop.remove_timed(recorder)
    loop.turn(0.0)
    assert log == ["tick", "flush"]
    loop.close()


def test_a_closed_loop_accepts_posts_and_runs_none(clock: Clock) -> None:
    """A completion that comes after the end is dropped without an error."""
    loop = EventLoop(clock)
    loop.close()
    loop.call_soon_threadsafe(lambda: pytest.fail("ran after close"))
    loop.close()
