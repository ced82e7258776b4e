"""Signals of a daemon, acted upon in a thread of their own.

A Python signal handler runs in the main thread at any point of it, so it must not take a lock that the main thread may hold.
Here the handler does nothing: the interpreter writes the signal's number to a socket (``signal.set_wakeup_fd``) even while the
main thread waits for a lock, and a thread that reads this socket calls the action like any other code.
"""

import signal
import socket
import threading
from collections.abc import Callable, Mapping
from types import FrameType, TracebackType
from typing import Self

Action = Callable[[], None]
_Handler = Callable[[int, FrameType | None], object] | int | None


class SignalWatch:
    """While open, each signal in ``actions`` runs its action in the watching thread. Open it in the main thread."""

    def __init__(self, actions: Mapping[signal.Signals, Action]) -> None:
        self._actions = dict(actions)
        self._before: dict[signal.Signals, _Handler] = {}
        self._reader, self._writer = socket.socketpair()
        self._thread = threading.Thread(target=self._watch, name="signals", daemon=True)

    def __enter__(self) -> Self:
        self._writer.setblocking(False)
        self._wakeup_before = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in self._actions:
            self._before[number] = signal.signal(number, _ignore)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_before)
        self._writer.close()  # the thread reads the end of the stream and returns
        self._thread.join()
        self._reader.close()

    def _watch(self) -> None:
        while numbers := self._reader.recv(64):
            for number in numbers:
                action = self._actions.get(signal.Signals(number))
                if action is not None:
                    action()


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """Leave the work to the watching thread."""
