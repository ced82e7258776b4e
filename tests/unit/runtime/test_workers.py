"""Workers: work goes out, its outcome comes back on the loop's thread."""

import threading
from collections.abc import Iterator

import pytest

from runtime.loop import EventLoop
from runtime.workers import WorkerPool


@pytest.fixture
def loop() -> Iterator[EventLoop]:
    """A loop that the test turns."""
    made = EventLoop()
    yield made
    made.close()


def test_outcomes_come_back_on_the_loops_thread(loop: EventLoop) -> None:
    """Results and errors are delivered by the turning thread, and counted until then."""
    workers = WorkerPool(loop, 2, "worker")
    log: list[object] = []
    worker_threads: set[int] = set()

    def work() -> int:
        worker_threads.add(threading.get_ident())
        return 7

    def fail() -> int:
        raise ValueError("no")

    workers.submit(work, lambda result: log.append((result, threading.get_ident())), lambda _: None)
    workers.submit(fail, lambda _: None, lambda error: log.append(str(error)))
    assert workers.outstanding == 2
    while workers.outstanding:
        loop.turn(1.0)
    assert sorted(log, key=str) == sorted([(7, threading.get_ident()), "no"], key=str)
    assert threading.get_ident() not in worker_threads
    workers.close()


def test_work_that_never_began_is_never_delivered(loop: EventLoop) -> None:
    """Closing waits for what runs and drops what does not."""
    workers = WorkerPool(loop, 1, "worker")
    started, go_on = threading.Event(), threading.Event()
    delivered: list[str] = []

    def first() -> None:
        started.set()
        go_on.wait()

    workers.submit(first, lambda _: delivered.append("first"), lambda _: None)
    workers.submit(lambda: None, lambda _: delivered.append("second"), lambda _: None)
    started.wait()
    closing = threading.Thread(target=workers.close)
    closing.start()
    go_on.set()
    closing.join(30)
    while workers.outstanding:
        loop.turn(1.0)
    assert delivered[:1] == ["first"]
    assert len(delivered) <= 2
