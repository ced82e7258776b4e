"""Deadlines and retry intervals for pure machines: time goes in, one next deadline comes out.

``Timers`` is a table from a key to its deadline. Setting a key again replaces its deadline; a replaced or cancelled entry stays
in the heap until it surfaces, and the heap is rebuilt when such entries outnumber the live ones, so memory follows the number
of keys and not the number of changes.
"""

import heapq
from collections.abc import Hashable
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

_REBUILD_AT = 64


class Timers(Generic[K]):
    """Which keys are due, in the order of their deadlines; equal deadlines in the order in which they were set."""

    def __init__(self) -> None:
        self._deadline: dict[K, tuple[float, int]] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._serial = count()

    def __len__(self) -> int:
        return len(self._deadline)

    def __contains__(self, key: K) -> bool:
        return key in self._deadline

    def set(self, key: K, at: float) -> None:
        """Make ``key`` due at ``at``, whatever was set for it before."""
        entry = (at, next(self._serial))
        self._deadline[key] = entry
        heapq.heappush(self._heap, (*entry, key))
        if len(self._heap) > _REBUILD_AT + 2 * len(self._deadline):
            self._heap = [(at, serial, key) for key, (at, serial) in self._deadline.items()]
            heapq.heapify(self._heap)

    def cancel(self, key: K) -> None:
        """Forget ``key``; unknown keys change nothing."""
        self._deadline.pop(key, None)

    def deadline(self, key: K) -> float | None:
        """When ``key`` is due, or ``None`` if it is not set."""
        entry = self._deadline.get(key)
        return None if entry is None else entry[0]

    def next(self) -> float | None:
        """The earliest deadline, or ``None`` if nothing is set."""
        self._drop_replaced()
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now: float) -> list[K]:
        """Remove and return every key whose deadline is not after ``now``."""
        due: list[K] = []
        while (at := self.next()) is not None and at <= now:
            key = heapq.heappop(self._heap)[2]
            del self._deadline[key]
            due.append(key)
        return due

    def _drop_replaced(self) -> None:
        while self._heap and self._deadline.get(self._heap[0][2]) != self._heap[0][:2]:
            heapq.heappop(self._heap)


@dataclass(slots=True)
class Backoff:
    """Doubling retry intervals in seconds, from ``first_s`` up to ``limit_s``, each shortened by up to a fifth at random.

    The jitter only ever shortens, so a lost message is repeated within its timer's nominal interval.
    """

    first_s: float
    limit_s: float
    tries: int = 0

    def next_interval(self, random: Random) -> float:
        """The interval to wait before the next try."""
        interval = min(self.first_s * 2.0 ** min(self.tries, 32), self.limit_s)
        self.tries += 1
        return interval * (1.0 - 0.2 * random.random())

    def reset(self) -> None:
        """Start again at ``first_s``."""
        self.tries = 0
