"""Virtual time: what happens next, in an order that depends on nothing but the seed."""

import heapq
from collections.abc import Callable
from itertools import count

from lab.simulator.memory import ViolationError

MAX_STEPS = 200_000
"""Ten times what the busiest run takes."""


class EventQueue:
    """Actions at points of virtual time (seconds); equal times run in the order in which they were added."""

    def __init__(self) -> None:
        self.now = 0.0
        self.steps = 0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = count()

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Run ``action`` at ``time``, or now if that has passed."""
        heapq.heappush(self._heap, (max(time, self.now), next(self._serial), action))

    def after(self, delay: float, action: Callable[[], None]) -> None:
        """Run ``action`` in ``delay`` seconds."""
        self.at(self.now + delay, action)

    def step(self, until: float) -> bool:
        """Run the next action not later than ``until``; ``False`` if there is none (time is then ``until``)."""
        if not self._heap or self._heap[0][0] > until:
            self.now = max(self.now, until)
            return False
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise ViolationError(f"stuck: {MAX_STEPS} steps, and it is {self.now:.3f} s")
        self.now, _, action = heapq.heappop(self._heap)
        action()
        return True
