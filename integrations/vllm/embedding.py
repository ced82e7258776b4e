"""One half of the service inside a worker process of the engine: serves its pool, and ends with the process at the latest."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, Protocol

import structlog

from runtime.logs import configure_logs

START_S: Final = 60.0
"""How long a half may take to serve its pool."""


def open_logs(level: str) -> None:
    """Send our logs where those of a daemon go, unless the engine has a place of its own for them."""
    if not structlog.is_configured():
        configure_logs(level)


class Half(Protocol):
    """A ``DecodeStagingServer`` or a ``PrefillStagingClient``."""

    def start(self) -> None:
        """Take every lock and socket, or raise ``StartError``."""

    def request_stop(self) -> None:
        """Begin the end."""

    def join(self) -> int:
        """Wait for it."""


class Embedded:
    """A running half. vLLM may end a worker without a word: then the half ends with the process's main thread."""

    def __init__(self, half: Half, attach: Callable[[], "Future[dict[str, Any]]"]) -> None:
        self._half = half
        half.start()
        # The half's own thread keeps the interpreter alive until it is told to stop.
        threading.Thread(target=self._end_with_main_thread, name="pd-staging-end", daemon=True).start()
        try:
            attach().result(START_S)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the half and wait for it. Any number of times."""
        self._half.request_stop()
        self._half.join()

    def _end_with_main_thread(self) -> None:
        threading.main_thread().join()
        self._half.request_stop()
