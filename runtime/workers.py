"""Threads that copy and sum, and bring every result back to the loop's thread."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from runtime.loop import EventLoop

T = TypeVar("T")


class WorkerPool:
    """Work goes out from the loop's thread and its outcome comes back there: nothing else crosses threads."""

    def __init__(self, loop: EventLoop, threads: int, name: str) -> None:
        self._loop = loop
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self.outstanding = 0
        """Work whose outcome has not been delivered. Loop thread only."""

    def submit(self, work: Callable[[], T], done: Callable[[T], None], failed: Callable[[Exception], None]) -> None:
        """Run ``work`` in a worker, then ``done`` with its result or ``failed`` with its error on the loop's thread."""
        self.outstanding += 1
        future = self._executor.submit(work)
        future.add_done_callback(lambda ended: self._loop.call_soon_threadsafe(partial(self._deliver, ended, done, failed)))

    def close(self) -> None:
        """Wait for the work that runs; what has not begun never does. Call when nothing is outstanding, or all is lost."""
        self._executor.shutdown(wait=True, cancel_futures=True)

    def _deliver(self, ended: "Future[T]", done: Callable[[T], None], failed: Callable[[Exception], None]) -> None:
        self.outstanding -= 1
        if ended.cancelled():
            return
        error = ended.exception()
        if error is None:
            done(ended.result())
        elif isinstance(error, Exception):
            failed(error)
        else:
            raise error
