"""A seeded network between processes: loss, repetition, reordering, delay and partition, at message boundaries.

A message to a decode rank goes to whoever holds that address when it arrives, as a queued frame does; a message to a prefill goes to the
life that opened the connection, and is unroutable when that life is over.
"""

from collections import Counter
from collections.abc import Callable
from random import Random

from lab.simulator.events import EventQueue
from lab.simulator.options import Options


class Network:
    """Delivers frames later, or never, or twice; ``healed`` turns every fault off."""

    def __init__(self, events: EventQueue, options: Options, random: Random, faults: Counter[str]) -> None:
        self._events = events
        self._options = options
        self._random = random
        self._faults = faults
        self._cut_until: dict[tuple[str, str], float] = {}
        self._last_arrival: dict[tuple[str, str, str], float] = {}
        self.healed = False

    def cut(self, one: str, other: str, until: float) -> None:
        """Let nothing pass between two processes until then."""
        self._faults["partitioned"] += 1
        self._cut_until[self._pair(one, other)] = until

    def is_full(self) -> bool:
        """Whether a send would block just now."""
        return not self.healed and self._random.random() < self._options.faults.send_full

    def send(self, source: str, target: str, channel: str, deliver: Callable[[], None]) -> None:
        """Send one message; ``channel`` ``data`` keeps its order, ``control`` may not."""
        if self._is_lost(source, target):
            self._faults["lost"] += 1
            return
        copies = 1
        if not self.healed and self._random.random() < self._options.faults.duplication:
            self._faults["duplicated"] += 1
            copies = 2
        for _ in range(copies):
            self._events.at(self._arrival(source, target, channel), deliver)

    def _is_lost(self, source: str, target: str) -> bool:
        if self.healed:
            return False
        cut_until = self._cut_until.get(self._pair(source, target), 0.0)
        return self._events.now < cut_until or self._random.random() < self._options.faults.loss

    def _arrival(self, source: str, target: str, channel: str) -> float:
        link = (source, target, channel)
        arrival = self._events.now + self._options.delay_s * (0.5 + self._random.random())
        if channel == "control" and not self.healed and self._random.random() < self._options.faults.reordering:
            self._faults["reordered"] += 1
            return arrival + self._options.delay_s * self._random.choice([2, 10, 100]) * self._random.random()
        arrival = max(arrival, self._last_arrival.get(link, 0.0))
        self._last_arrival[link] = arrival
        return arrival

    def _pair(self, one: str, other: str) -> tuple[str, str]:
        return (one, other) if one < other else (other, one)
