"""A seeded network between processes: loss, repetition, reordering, delay and partition, at message boundaries.

A message to a decode rank goes to whoever holds that address when it arrives, as a queued frame does; a message to a prefill
goes to the life that opened the connection, and is unroutable when that life is over.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from lab.simulator.events import EventQueue
from lab.simulator.options import Options

DATA = "data"
CONTROL = "control"


@dataclass(frozen=True, slots=True)
class Envelope:
    """Where a message goes and what it is. ``channel`` ``data`` keeps its order, ``control`` may not."""

    source: str
    target: str
    channel: str
    kind: str


@dataclass(frozen=True, slots=True)
class Cut:
    """Nothing passes one way until ``until``; ``holds``: it arrives then, instead of never."""

    until: float
    holds: bool


class Network:
    """Delivers messages later, or never, or twice; ``healed`` turns every fault off."""

    def __init__(self, events: EventQueue, options: Options, random: Random, faults: Counter[str]) -> None:
        self._events = events
        self._options = options
        self._random = random
        self._faults = faults
        self._cuts: dict[tuple[str, str], Cut] = {}
        self._last_arrival: dict[tuple[str, str, str], float] = {}
        self.drop: Callable[[Envelope], bool] | None = None
        """A test's own choice of messages to lose, whether healed or not."""
        self.losses: list[float] = []
        """When each message was lost."""
        self.healed = False

    def cut(self, one: str, other: str, cut: Cut, *, both_ways: bool) -> None:
        """Cut the way from one process to the other, and perhaps the way back."""
        self._faults["partitioned"] += 1
        self._cuts[one, other] = cut
        if both_ways:
            self._cuts[other, one] = cut

    def is_full(self) -> bool:
        """Whether a send would block just now."""
        full = not self.healed and self._random.random() < self._options.faults.send_full
        if full:
            self._lose()
        return full

    def send(self, envelope: Envelope, deliver: Callable[[], None]) -> None:
        """Send one message."""
        if self._is_lost(envelope):
            self._lose()
            return
        copies = 1
        if not self.healed and self._random.random() < self._options.faults.duplication:
            self._faults["duplicated"] += 1
            copies = 2
        for _ in range(copies):
            self._events.at(self._arrival(envelope), deliver)

    def _lose(self) -> None:
        self._faults["lost"] += 1
        self.losses.append(self._events.now)

    def _is_lost(self, envelope: Envelope) -> bool:
        if self.drop is not None and self.drop(envelope):
            return True
        if self.healed:
            return False
        cut, faults = self._cut(envelope), self._options.faults
        if cut is not None and not cut.holds:
            return True
        if envelope.kind == faults.target and self._random.random() < faults.target_loss:
            self._faults["lost_targets"] += 1
            return True
        return self._random.random() < faults.loss

    def _lag(self, envelope: Envelope) -> float:
        """How much a message falls behind those that are sent after it."""
        faults = self._options.faults
        if envelope.channel == CONTROL and self._random.random() < faults.reordering:
            self._faults["reordered"] += 1
            return self._options.delay_s * self._random.choice([2, 10, 100]) * self._random.random()
        if self._random.random() < faults.late:
            self._faults["late"] += 1
            return faults.late_s * self._random.random()
        return 0.0

    def _cut(self, envelope: Envelope) -> Cut | None:
        cut = self._cuts.get((envelope.source, envelope.target))
        return cut if cut is not None and self._events.now < cut.until else None

    def _arrival(self, envelope: Envelope) -> float:
        link = (envelope.source, envelope.target, envelope.channel)
        arrival = self._events.now + self._options.delay_s * (0.5 + self._random.random())
        if not self.healed and (cut := self._cut(envelope)) is not None:
            self._faults["held"] += 1
            arrival += cut.until - self._events.now
        elif not self.healed and (lag := self._lag(envelope)):
            return arrival + lag
        arrival = max(arrival, self._last_arrival.get(link, 0.0))
        self._last_arrival[link] = arrival
        return arrival
