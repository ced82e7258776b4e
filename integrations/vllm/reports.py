"""Which requests a worker owes vLLM a report on, and which of them are due: each exactly once, whatever ends it."""

from threading import Condition
from typing import NamedTuple


class Due(NamedTuple):
    """Requests to report now, and the blocks of the failed loads among those received."""

    sent: frozenset[str] = frozenset()
    received: frozenset[str] = frozenset()
    bad_blocks: frozenset[int] = frozenset()


class Reports:
    """Any thread settles, the engine's thread owes and takes.

    vLLM holds a request's blocks until every rank has reported it, and the engine dies of an id that it does not know. So an id
    can be taken only after it was owed and settled, and only once.
    """

    def __init__(self) -> None:
        self._changed = Condition()
        self._owed: set[str] = set()
        self._due: set[str] = set()
        self._bad_blocks: set[int] = set()

    def __contains__(self, request: str) -> bool:
        with self._changed:
            return request in self._owed

    def owe(self, request: str) -> bool:
        """A report will be due. False if one is owed or due already: then nothing more may be done for the request."""
        with self._changed:
            if request in self._owed or request in self._due:
                return False
            self._owed.add(request)
            return True

    def settle(self, request: str, bad_blocks: frozenset[int] = frozenset()) -> bool:
        """What the request waited for is over; none of its blocks is used any more. False if it was settled before."""
        with self._changed:
            if request not in self._owed:
                return False
            self._owed.remove(request)
            self._due.add(request)
            self._bad_blocks |= bad_blocks
            self._changed.notify_all()
            return True

    def take(self, wait_s: float = 0.0) -> tuple[frozenset[str], frozenset[int]]:
        """What is due, and bad blocks. Where something is owed and nothing due, wait at most ``wait_s`` for it."""
        with self._changed:
            if wait_s > 0 and self._owed:
                self._changed.wait_for(lambda: bool(self._due), wait_s)
            due, bad_blocks = frozenset(self._due), frozenset(self._bad_blocks)
            self._due.clear()
            self._bad_blocks.clear()
            return due, bad_blocks
