"""Who is owed the current watermark, in which order, at a cost to each free that does not grow with the subscribers.

A watermark is absolute state, so only the newest matters and no queue of watermarks exists. Rules, and why:

1. A change marks sessions as owed; what is sent later is the value *then* current. Two changes before a send are one send.
2. Sessions that hold grants they have not written yet go first: only they can be stopped by a stale watermark.
3. A session whose send would block is set aside until its retry time and costs nothing meanwhile.
4. Marking touches the waiting sessions and those already up to date (each of which was paid for by a send), never the rest.
"""

from collections import OrderedDict
from collections.abc import Iterator

from protocol.timers import Timers


class WatermarkFanout:
    """Every registered session is in exactly one of: up to date, owed, owed first, set aside."""

    def __init__(self, retry_s: float, retry_limit_s: float) -> None:
        self._retry_s = retry_s
        self._retry_limit_s = retry_limit_s
        self._current: OrderedDict[str, None] = OrderedDict()
        self._owed: OrderedDict[str, None] = OrderedDict()
        self._first: OrderedDict[str, None] = OrderedDict()
        self._aside: Timers[str] = Timers()
        self._waiting: dict[str, None] = {}
        self._failures: dict[str, int] = {}

    def register(self, session: str) -> bool:
        """Owe a new session its snapshot, first of all. ``False`` and no change if it is registered already."""
        if session in self:
            return False
        self._first[session] = None
        return True

    def remove(self, session: str) -> None:
        """Owe this session nothing any more."""
        for group in (self._current, self._owed, self._first, self._waiting, self._failures):
            group.pop(session, None)
        self._aside.cancel(session)

    def set_waiting(self, session: str, waiting: bool) -> None:
        """Say whether this session holds grants that it has not written yet; one that is not registered is owed nothing."""
        if waiting and session in self:
            self._waiting[session] = None
            if session in self._owed:
                del self._owed[session]
                self._first[session] = None
        else:
            self._waiting.pop(session, None)

    def mark(self) -> None:
        """The watermark has changed: everybody up to date is owed again."""
        for session in self._waiting:
            if session in self._current:
                del self._current[session]
                self._first[session] = None
        if self._owed:
            self._owed.update(self._current)
            self._current.clear()
        else:
            self._owed, self._current = self._current, self._owed

    def take(self, now: float, budget: int) -> Iterator[str]:
        """Sessions to send to now: all that go first, then at most ``budget`` others. Each counts as sent unless set aside."""
        for session in self._aside.pop_due(now):
            (self._first if session in self._waiting else self._owed)[session] = None
        while self._first:
            yield self._sent(self._first)
        while self._owed and budget > 0:
            budget -= 1
            yield self._sent(self._owed)

    def sent(self, session: str) -> None:
        """This session was sent the current watermark outside ``take``."""
        if session in self:
            self._first.pop(session, None)
            self._owed.pop(session, None)
            self._aside.cancel(session)
            self._current[session] = None

    def set_aside(self, session: str, now: float) -> None:
        """A send to this session would have blocked: try again later, each time with a longer wait."""
        if session not in self:
            return
        failures = self._failures.get(session, 0)
        self._failures[session] = failures + 1
        for group in (self._current, self._owed, self._first):
            group.pop(session, None)
        self._aside.set(session, now + min(self._retry_s * 2.0 ** min(failures, 32), self._retry_limit_s))

    def heard_from(self, session: str) -> None:
        """The peer spoke: its queue moves again, so the next retry starts with a short wait."""
        self._failures.pop(session, None)

    def next_deadline(self) -> float | None:
        """When the earliest set-aside session is to be tried again."""
        return self._aside.next()

    @property
    def has_owed(self) -> bool:
        """Whether anybody can be sent to at once."""
        return bool(self._first or self._owed)

    @property
    def owed_count(self) -> int:
        """How many sessions have not been sent the current watermark, those set aside included."""
        return len(self._first) + len(self._owed) + len(self._aside)

    def __contains__(self, session: str) -> bool:
        return session in self._current or session in self._owed or session in self._first or session in self._aside

    def __len__(self) -> int:
        return len(self._current) + len(self._owed) + len(self._first) + len(self._aside)

    def _sent(self, group: OrderedDict[str, None]) -> str:
        session, _ = group.popitem(last=False)
        self._current[session] = None
        return session
