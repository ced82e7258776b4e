"""Says every minute that a daemon listens beyond loopback without keys, so that nobody can have missed it."""

from collections.abc import Callable, Sequence

from runtime.logs import logger

INTERVAL_S = 60.0


class InsecurityWarning:
    """One of the loop's timed objects. Speaks at once, and then every ``INTERVAL_S``."""

    def __init__(self, addresses: Sequence[str], clock: Callable[[], float]) -> None:
        self._addresses = tuple(addresses)
        self._due = clock()
        self._log = logger()

    def next_deadline(self) -> float | None:
        """When it speaks next."""
        return self._due

    def tick(self, now: float) -> None:
        """Speak."""
        self._due = now + INTERVAL_S
        text = "anybody who reaches these sockets can read and write KV cache (--insecure)"
        self._log.warning("insecure_sockets_open", reason=text, addresses=list(self._addresses))

    def flush(self, now: float) -> None:
        """Nothing is owed."""
