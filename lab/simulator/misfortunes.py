"""What befalls a simulated deployment: when each fault of its options strikes, and whom; rather when there is work."""

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from lab.simulator.network import Cut
from lab.simulator.prefill_process import PrefillProcess
from lab.simulator.process import Process

if TYPE_CHECKING:
    from lab.simulator.world import World

FAULTY_S = 30.0
"""Virtual seconds with faults."""
LAST_S = FAULTY_S * 0.7
"""No fault begins later than this."""
PATIENCE_S = 0.3
"""How often a fault looks whether there is work to disturb."""


class Misfortunes:
    """Plans and carries out the faults of one run."""

    def __init__(self, world: "World", random: Random) -> None:
        self._world = world
        self._random = random
        self._tears: list[float] = []
        self.buried: set[str] = set()
        """Prefills that will not come back."""

    def plan(self) -> None:
        """Draw the moment of every fault that is counted."""
        faults, random = self._world.options.faults, self._random
        self._tears = sorted((self._moment() for _ in range(faults.torn_writes)), reverse=True)
        for count, strike in (
            (faults.prefill_crashes, lambda: self._crash(self._a_prefill())),
            (faults.decode_crashes, lambda: self._crash(random.choice(list(self._world.decodes.values())))),
            (faults.burials, lambda: self._bury(self._a_prefill())),
            (faults.takeovers, lambda: self._take_over(self._a_prefill())),
            (faults.pauses, lambda: self._pause(self._anybody(), 3.0 * random.random())),
            (faults.long_pauses, lambda: self._pause(self._anybody(), 4.0 + 16.0 * random.random())),
            (faults.partitions, self._partition),
            (faults.departures, lambda: self._depart(self._anybody())),
            (faults.engine_aborts, self._abort),
        ):
            for _ in range(count):
                self._world.events.at(self._moment(), lambda strike=strike: self._strike(strike))  # type: ignore[misc]

    def tears(self, process: Process) -> bool:
        """Stop a process whose write is half done, if it is time for that."""
        if not self._tears or self._tears[-1] > self._world.events.now or self._world.network.healed:
            return False
        self._tears.pop()
        self._pause(process, self._random.choice([1.0, 8.0, 14.0, 25.0]) * (0.5 + self._random.random()))
        return True

    def heal(self) -> None:
        """Start everything that is down; what is stopped goes on by itself."""
        for process in (*self._world.decodes.values(), *self._world.prefills.values()):
            if process.name not in self.buried:
                self._restart(process)

    def _moment(self) -> float:
        return LAST_S * self._random.random() ** 2

    def _strike(self, strike: Callable[[], None]) -> None:
        """Wait for work, as long as there is time for it to suffer."""
        busy = self._world.engines.open or self._world.events.now > LAST_S
        if busy:
            strike()
        else:
            self._world.events.after(PATIENCE_S * self._random.random(), lambda: self._strike(strike))

    def _a_prefill(self) -> PrefillProcess:
        return self._random.choice(list(self._world.prefills.values()))

    def _anybody(self) -> Process:
        return self._random.choice([*self._world.decodes.values(), *self._world.prefills.values()])

    def _crash(self, process: Process) -> None:
        if not process.alive:
            return
        self._world.faults["crashed"] += 1
        self._world.note(f"{process.name} is killed")
        process.end_life()
        down_s = self._random.choice([0.001, 0.1, 6.0, 12.0]) * self._random.random()
        self._world.events.after(down_s, lambda: self._restart(process))
        for room in tuple(self._world.engines.open):
            self._world.engines.close_if_over(room)

    def _restart(self, process: Process) -> None:
        # Whose place was taken does not come back: a life that began now would have its successor's incarnation.
        if process.alive or process.name in self.buried or process in self._world.former:
            return
        self._world.results["restarts"] += 1
        self._world.note(f"{process.name} starts again")
        process.begin_life()
        process.arm()

    def _bury(self, process: PrefillProcess) -> None:
        self._world.results["burials"] += 1
        self.buried.add(process.name)
        self._crash(process)

    def _take_over(self, former: PrefillProcess, tries: int = 50) -> None:
        """Somebody believes that a stopped process is dead, perhaps amid a write, and starts another in its place."""
        if not former.alive or self._world.prefills[former.name] is not former:
            return
        if tries and not former.writes.running:
            self._world.events.after(self._world.options.write_s, lambda: self._take_over(former, tries - 1))
            return
        self._world.faults["taken_over"] += 1
        self._pause(former, self._random.choice([0.001, 2.0, 12.0]) * self._random.random())
        self._world.note(f"{former.name}: a second process takes its place")
        self._world.succeed(former)

    def _depart(self, process: Process) -> None:
        """An operator stops a rank in order: it ends once it says that it may."""
        if process.alive:
            self._world.results["departures"] += 1
            self._world.note(f"{process.name} is asked to leave")
            process.deliver(process.leave)
            self._world.events.after(PATIENCE_S, lambda: self._see_off(process, process.life, self._world.events.now + 15.0))

    def _see_off(self, process: Process, life: int, at_latest: float) -> None:
        if not process.alive or process.life != life:
            return
        if process.has_left() or self._world.events.now > at_latest:
            self._world.results["departed_in_order"] += process.has_left()
            self._crash(process)
        else:
            self._world.events.after(PATIENCE_S, lambda: self._see_off(process, life, at_latest))

    def _pause(self, process: Process, duration: float) -> None:
        self._world.faults["paused"] += process.alive
        self._world.note(f"{process.name} is stopped for {duration:.2f} s")
        process.pause(duration)

    def _partition(self) -> None:
        pair = [self._random.choice(list(self._world.prefills)), self._random.choice(list(self._world.decodes))]
        self._random.shuffle(pair)
        duration = self._random.choice([0.5, 3.0, 15.0]) * self._random.random()
        cut = Cut(self._world.events.now + duration, holds=self._random.random() < 0.5)
        both_ways = self._random.random() < 0.7
        self._world.note(f"{pair[0]} and {pair[1]} are cut off from each other: {cut}, both ways: {both_ways}")
        self._world.network.cut(pair[0], pair[1], cut, both_ways=both_ways)
        if not cut.holds:
            prefill, decode = (pair[0], pair[1]) if pair[0] in self._world.prefills else (pair[1], pair[0])
            self._world.events.at(cut.until, lambda: self._reconnect(prefill, decode))

    def _reconnect(self, prefill: str, decode: str) -> None:
        self._world.results["reconnects"] += 1
        self._world.prefills[prefill].connections[decode] += 1

    def _abort(self) -> None:
        engines = self._world.engines
        if not engines.open:
            return
        room, process = self._random.choice(sorted(engines.open)), self._anybody()
        self._world.note(f"{process.name}: its engine gives up room {room}")
        self._world.results["engine_aborts"] += 1
        process.deliver(lambda: process.abort_room(room))
