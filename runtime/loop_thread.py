"""The thread that runs a daemon's loop, and the exit code it ends with."""

import threading
from collections.abc import Callable

from runtime.logs import logger
from runtime.loop import EventLoop

STOPPED = 0
CRASHED = 1


class LoopThread:
    """Runs ``loop`` until it stops or breaks, then ``clean_up`` on the same thread, whichever it was.

    If it breaks, ``on_crash`` comes first, while everything still stands as it did.
    """

    def __init__(
        self, loop: EventLoop, name: str, clean_up: Callable[[], None], on_crash: Callable[[], object] = lambda: None
    ) -> None:
        self._loop = loop
        self._clean_up = clean_up
        self._on_crash = on_crash
        self._exit_code = STOPPED
        # Not a daemon thread: the interpreter waits for it, so that shared memory is removed and peers are told.
        self._thread = threading.Thread(target=self._run, name=name)

    def start(self) -> None:
        """Begin. What the loop uses belongs to that thread from now on."""
        self._thread.start()

    def join(self) -> int:
        """Wait for the end: ``STOPPED`` or ``CRASHED``."""
        self._thread.join()
        return self._exit_code

    @property
    def runs_here(self) -> bool:
        """Whether the caller is that thread."""
        return threading.current_thread() is self._thread

    def _run(self) -> None:
        try:
            self._loop.run()
        except Exception:  # noqa: BLE001 - the one place where a fault of ours ends the daemon, after it was logged
            self._exit_code = CRASHED
            logger().exception("loop_crashed")
            self._on_crash()
        finally:
            self._clean_up()
