"""One thread that owns every socket and every machine of a daemon: read, complete, judge, send, sleep.

The order within one turn is the point of this file:

1. *Read* every readable source in small batches, round-robin, so that no peer holds up another.
2. *Run* what other threads have posted: completions of workers, commands of an engine in the same process.
3. *Judge*: ``tick`` the machines that are due. Only now, since a daemon that was itself stopped must read what its peers had
   sent in the meantime before it may call them silent. A turn that took much longer than it asked for reads until it is
   quiet first.
4. *Send* what is still owed (``flush``).
5. *Sleep* in ``zmq_poll`` until a source is ready, a thread posts, or the earliest deadline. Waiting costs no CPU.
"""

import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

import zmq

Source = zmq.Socket[bytes] | int
"""A zmq socket or a file descriptor."""

BATCH = 64
"""Messages read from one source before the others have their turn."""
MAX_ROUNDS = 64
"""Batches read from one source in one turn; what is left waits for the next turn."""
PAUSE_S = 0.25
"""A turn that oversleeps by this much means that this process did not run."""
QUIET_S = 0.02
SETTLE_S = 1.0
MAX_SLEEP_S = 3600.0


class Reader(Protocol):
    """Reads at most ``limit`` messages of a source and says whether more may be waiting."""

    def __call__(self, limit: int) -> bool:
        """Read."""


class Timed(Protocol):
    """Something with deadlines: a machine and the shell around it."""

    def next_deadline(self) -> float | None:
        """When ``tick`` wants to be called, in seconds of the loop's clock; ``None`` for never."""

    def tick(self, now: float) -> None:
        """Act on every deadline that is not after ``now``."""

    def flush(self, now: float) -> None:
        """Send what is still owed; called once at the end of every turn. Never blocks."""


class EventLoop:
    """Sources, posted calls and deadlines, served by the thread that calls ``run``."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._poller = zmq.Poller()
        self._readers: dict[Source, Reader] = {}
        self._writers: dict[Source, Callable[[], None]] = {}
        self._timed: list[Timed] = []
        self._calls: deque[Callable[[], None]] = deque()
        self._guard = threading.Lock()
        self._wake_pending = False
        self._stopped = False
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller.register(self._wake, zmq.POLLIN)

    def add_reader(self, source: Source, read: Reader) -> None:
        """Call ``read`` whenever ``source`` is readable. Loop thread, or before ``run``."""
        self._readers[source] = read
        self._watch(source)

    def remove_reader(self, source: Source) -> None:
        """Stop reading ``source``; unknown ones change nothing. A paused source keeps its messages."""
        if self._readers.pop(source, None) is not None:
            self._watch(source)

    def add_writer(self, source: Source, write: Callable[[], None]) -> None:
        """Call ``write`` whenever ``source`` is writable, until ``remove_writer``."""
        self._writers[source] = write
        self._watch(source)

    def remove_writer(self, source: Source) -> None:
        """Stop waiting for ``source`` to be writable; unknown ones change nothing."""
        if self._writers.pop(source, None) is not None:
            self._watch(source)

    def add_timed(self, timed: Timed) -> None:
        """Serve these deadlines from now on."""
        self._timed.append(timed)

    def remove_timed(self, timed: Timed) -> None:
        """Serve these deadlines no longer."""
        self._timed.remove(timed)

    def call_soon_threadsafe(self, call: Callable[[], None]) -> None:
        """Run ``call`` on the loop's thread in its next turn. Any thread; after ``close`` it is never run."""
        self._calls.append(call)
        with self._guard:
            if self._wake_pending or self._wake < 0:
                return
            self._wake_pending = True
            os.eventfd_write(self._wake, 1)

    def stop(self) -> None:
        """Make ``run`` return at the end of its turn. Any thread."""
        self.call_soon_threadsafe(self._stop)

    def run(self) -> None:
        """Serve until ``stop``. What a callback raises ends the loop: it is a bug on this side."""
        while not self._stopped:
            self.turn()

    def turn(self, limit_s: float = MAX_SLEEP_S) -> None:
        """Sleep for at most ``limit_s`` seconds, then do one turn as the head of this file says."""
        asleep_since = self.clock()
        sleep_s = self._sleep_s(asleep_since, limit_s)
        self._serve_ready(sleep_s)
        self._run_calls()
        now = self.clock()
        if now - asleep_since > sleep_s + PAUSE_S:
            now = self._settle()
        # A pause from here on does no harm: peers are judged by the time until which we have certainly heard them.
        for timed in tuple(self._timed):
            due = timed.next_deadline()
            if due is not None and due <= now:
                timed.tick(now)
        for timed in tuple(self._timed):
            timed.flush(now)

    def close(self) -> None:
        """Release the wake-up descriptor. Sources belong to those who added them."""
        with self._guard:
            if self._wake >= 0:
                os.close(self._wake)
                self._wake = -1

    def _stop(self) -> None:
        self._stopped = True

    def _watch(self, source: Source) -> None:
        wanted = (zmq.POLLIN if source in self._readers else 0) | (zmq.POLLOUT if source in self._writers else 0)
        if wanted:
            self._poller.register(source, wanted)
        elif source in self._poller:
            self._poller.unregister(source)

    def _sleep_s(self, now: float, limit_s: float) -> float:
        if self._calls or self._stopped:
            return 0.0
        due = [at - now for timed in self._timed if (at := timed.next_deadline()) is not None]
        return max(0.0, min((limit_s, *due)))

    def _serve_ready(self, sleep_s: float) -> bool:
        events = self._poller.poll(math.ceil(sleep_s * 1000.0))
        for source, flags in events:
            if flags & zmq.POLLOUT and (write := self._writers.get(source)) is not None:
                write()
        waiting = [source for source, flags in events if flags & zmq.POLLIN or flags & zmq.POLLERR]
        for _ in range(MAX_ROUNDS):
            waiting = [source for source in waiting if self._read_batch(source)]
            if not waiting:
                break
        return bool(events)

    def _read_batch(self, source: Source) -> bool:
        if source == self._wake:
            self._drain_wake()
            return False
        read = self._readers.get(source)
        return read is not None and read(BATCH)

    def _drain_wake(self) -> None:
        with self._guard:
            self._wake_pending = False
            if self._wake >= 0:
                os.eventfd_read(self._wake)

    def _run_calls(self) -> bool:
        """Run what was posted, and say whether there was anything."""
        # Only those that are there now: a call that posts another must not keep the sockets waiting.
        number = len(self._calls)
        for _ in range(number):
            self._calls.popleft()()
        return number > 0

    def _settle(self) -> float:
        """Read until nothing has arrived for a moment, and return when that moment began.

        After a pause zmq's own thread has to catch up with the kernel before what peers sent is readable here.
        """
        until = self.clock() + SETTLE_S
        while True:
            quiet_since = self.clock()
            heard = self._serve_ready(QUIET_S)
            # A call tells the machines a later time than that; no time may be returned that lies before it.
            heard = self._run_calls() or heard
            if not heard or quiet_since > until:
                return quiet_since if not heard else self.clock()
