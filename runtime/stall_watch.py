"""When the log speaks of something that does not move: after a first wait, and then once per doubling of it.

Pure timing: what waits, and since when, comes in; what is due to be said comes out. Nothing is kept of what has moved on.
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

MAX_LOOKED_AT = 10_000
"""Things that one look goes through at most, the oldest rooms first: a look must not hold up the loop."""
MAX_LINES = 16
"""Lines that one look may yield: those that wait longest. Who waits behind the same thing is told by theirs."""


@dataclass(slots=True)
class StallWatch(Generic[K]):
    """Looks at what waits every half of ``first_s`` seconds."""

    first_s: float
    next_look: float = 0.0
    """When ``look`` wants to be called, if anything may be waiting."""
    _said: dict[tuple[K, float], float] = field(default_factory=dict)
    """By what waits and since when: the wait after which it is spoken of again."""

    def look(self, now: float, waiting: Iterable[tuple[K, float]]) -> list[tuple[K, float]]:
        """``waiting`` has everything that waits, with the moment since when. What is due, longest wait first, with its wait."""
        self.next_look = now + self.first_s / 2
        said: dict[tuple[K, float], float] = {}
        due: list[tuple[K, float]] = []
        for key, since in islice(waiting, MAX_LOOKED_AT):
            waited = now - since
            if waited < self.first_s:
                continue
            after = self._said.get((key, since), self.first_s)
            if waited >= after:
                due.append((key, waited))
                while after <= waited:
                    after *= 2
            said[key, since] = after
        self._said = said
        due.sort(key=lambda line: -line[1])
        return due[:MAX_LINES]
