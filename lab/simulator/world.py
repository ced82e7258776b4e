"""A deployment, its engines and its misfortunes, drawn from one seed: faults, then healing, then everything must end.

Safety is checked at every step (``memory``, ``decode_checks``, ``promises``, the processes); liveness, reasons and leaks when
rooms and the run end (``verdicts``).
"""

from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random

from lab.simulator.decode_process import DecodeProcess
from lab.simulator.engines import Engines
from lab.simulator.events import EventQueue
from lab.simulator.garble import garble
from lab.simulator.memory import RingMemory
from lab.simulator.misfortunes import FAULTY_S, Misfortunes
from lab.simulator.network import CONTROL, Envelope, Network
from lab.simulator.options import Options
from lab.simulator.prefill_process import PrefillProcess
from lab.simulator.process import Process
from lab.simulator.rules import Rules
from lab.simulator.verdicts import check_bytes, demand_end, demand_no_leaks, demand_reason, demand_speed, is_drained
from prefill_service.repeats import MOST_PATIENCE
from protocol.layout import (
    ModelLayout,
    RankLayout,
    TensorSpec,
    chunk_bytes,
    even_stage_bounds,
    expected_writers,
    rank_token_bytes,
)
from protocol.messages import Message

HEALED_S = 600.0
"""Virtual seconds in which everything must end once faults have stopped."""
SETTLED_S = 12.0
"""Virtual seconds after which nothing may be left of what has ended."""


class World:
    """Everything of one run. ``run`` raises ``ViolationError`` at the first broken promise."""

    LEASE_S = 5.0
    QUARANTINE_S = 3.0
    RETRY_LIMIT_S = 2.0

    def __init__(self, options: Options, rules: Rules, log: Callable[[str], None] | None = None) -> None:
        self.options = options
        self.rules = rules
        self.events = EventQueue()
        self.random = Random(f"world {options.seed}")
        self.faults: Counter[str] = Counter()
        self.results: Counter[str] = Counter()
        self.network = Network(self.events, options, Random(f"network {options.seed}"), self.faults)
        self.memories: dict[str, RingMemory] = {}
        self._log = log
        self.decodes = {process.name: process for process in self._make_decodes()}
        self.prefills = {process.name: process for process in self._make_prefills()}
        self.former: list[PrefillProcess] = []
        """Prefills whose place another process has taken."""
        self.engines = Engines(self, Random(f"engines {options.seed}"))
        self.misfortunes = Misfortunes(self, Random(f"misfortunes {options.seed}"))

    # ---- the run ----------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Play the faulty phase, heal, and demand that everything ends."""
        self.start()
        self.misfortunes.plan()
        self.play(FAULTY_S)
        self.note("everything heals")
        self.network.healed = True
        self.misfortunes.heal()
        self.engines.heal()
        over = False
        while not over:
            while self.events.step(FAULTY_S + HEALED_S) and not self.is_over():
                pass
            demand_end(self)
            self.play(self.events.now + SETTLED_S + (self.options.faults.late_s if self.options.faults.late else 0.0))
            # An engine that was late may have begun anew meanwhile.
            over = self.is_over()
        demand_no_leaks(self)

    def start(self) -> None:
        """Begin every process and every request."""
        for process in (*self.decodes.values(), *self.prefills.values()):
            process.begin_life()
            process.arm()
        self.engines.plan()

    def play(self, until: float) -> None:
        """Let time pass."""
        while self.events.step(until):
            pass

    def is_over(self) -> bool:
        """Whether everybody has been told everything."""
        return (
            self.engines.idle
            and all(is_drained(d) and d.registered.keys() == d.ended.keys() for d in self.decodes.values())
            and all(p.submitted.keys() == p.ended.keys() for p in (*self.prefills.values(), *self.former) if p.alive)
        )

    def trace(self, source: str, target: str, message: Message) -> None:
        """Tell the log what is sent, if anybody listens."""
        if self._log is not None:
            self.note(f"{source} -> {target}: {message}")

    def note(self, text: str) -> None:
        """Tell the log what happens, if anybody listens."""
        if self._log is not None:
            self._log(f"{self.events.now:10.4f} {text}")

    # ---- what processes ask of the world ------------------------------------------------------------------------------------

    def group(self, name: str) -> list[PrefillProcess]:
        """The prefill ranks of one instance."""
        return [process for process in self.prefills.values() if process.group == name]

    def ring_bytes(self, layout: RankLayout) -> int:
        """The size of a decode rank's ring."""
        prefill = next(iter(self.prefills.values())).layout
        full_chunk = chunk_bytes(expected_writers(prefill, layout), self.options.chunk_tokens)
        return max(int(full_chunk * self.options.ring_chunks), rank_token_bytes(layout))

    def duration(self) -> float:
        """How long a write takes this time."""
        return self.options.write_s * (0.2 + 2 * self.random.random() ** 3)

    def write_duration(self) -> float:
        """How long a step of a write takes this time."""
        # Chance is asked only where it matters, so that the other seeds play as they always did.
        if self.options.faults.stuck_writes and self._strikes(self.options.faults.stuck_writes):
            self.faults["stuck_writes"] += 1
            return self.options.stop_wait_s + 12.0 * self.random.random()
        return self.duration() / 2

    def copy_duration(self) -> float:
        """How long a copy within a decode rank takes this time."""
        if self._strikes(self.options.faults.slow_copies):
            self.faults["slow_copies"] += 1
            return 0.5 + 12.0 * self.random.random()
        return self.duration()

    def corrupts(self) -> bool:
        """Whether the write that ends now is damaged on its way."""
        return self._counted("corrupted", self.options.faults.corruption)

    def fails_write(self) -> bool:
        """Whether the write that begins now will fail."""
        return self._strikes(self.options.faults.write_failures)

    def fails_plane(self, plane: str) -> bool:
        """Whether a data plane does not open just now."""
        return plane == self.options.faults.closed_plane or self._counted("planes_failed", self.options.faults.plane_failures)

    def refuses_memory(self) -> bool:
        """Whether the host has no memory for a new region just now."""
        return self._counted("memory_refused", self.options.faults.no_memory)

    def tears(self, process: Process) -> bool:
        """Whether the process was just stopped in the middle of a write."""
        return self.misfortunes.tears(process)

    def send_to_decode(
        self, source: PrefillProcess, target: DecodeProcess, channel: str, frames: list[bytes], payload: bytes = b""
    ) -> None:
        """Send to an address: whoever lives there at arrival gets it, and if nobody does it waits while its sender lives."""
        if self.network.is_full():
            return
        if self._counted("garbled", self.options.faults.garbled):
            nonsense, sender = garble(frames, self.random), source.route(target.name)
            self.events.after(self.options.delay_s, lambda: target.deliver(lambda: target.receive(sender, nonsense)))
        route, source_life, target_life = source.route(target.name), source.life, target.life
        receive = (
            partial(target.receive_data, frames, payload) if channel != CONTROL else partial(target.receive, route, frames)
        )

        def deliver() -> None:
            if not target.alive:
                if source.alive and source.life == source_life:
                    target.backlog.append(deliver)
                return
            self.results["frames_to_a_later_decode"] += target.life != target_life
            self.results["frames_of_a_former_prefill"] += source.life != source_life
            target.deliver(receive)

        self.network.send(Envelope(source.name, target.name, channel, frames[0].decode()), deliver)

    def send_to_prefill(self, source: DecodeProcess, route: bytes, frames: list[bytes]) -> str | None:
        """Send to one life of a prefill; says why if it cannot be sent."""
        name = route.decode().partition("/")[0]
        everybody = (self.prefills[name], *self.former)
        target = next((p for p in everybody if p.alive and p.route(source.name) == route), None)
        if target is None:
            return "unroutable"
        if self.network.is_full():
            return "full"
        if self._counted("garbled", self.options.faults.garbled):
            nonsense = garble(frames, self.random)
            self.events.after(self.options.delay_s, lambda: target.deliver(lambda: target.receive(source.name, nonsense)))
        peer, source_life, life = source.name, source.life, target.life

        def deliver() -> None:
            self.results["frames_of_a_former_decode"] += source.life != source_life
            target.deliver(lambda: target.receive(peer, frames), life)

        self.network.send(Envelope(peer, name, CONTROL, frames[0].decode()), deliver)
        return None

    def decode_room_ended(self, process: DecodeProcess, room: str, done: bool, code: str) -> None:
        """A decode engine was told: if the room is done, every byte must be right."""
        self.note(f"{process.name}: room {room} {'done' if done else f'failed: {code}'}")
        self.results["decode_done" if done else f"decode_failed_{code}"] += 1
        if done:
            check_bytes(self, self.engines.requests[room], process)
        else:
            demand_reason(self, process, room, code)
        self._close_if_over(room)

    def prefill_room_ended(self, process: PrefillProcess, room: str, done: bool, code: str) -> None:
        """A prefill engine was told."""
        self.note(f"{process.name}: room {room} {'done' if done else f'failed: {code}'}")
        self.results["prefill_done" if done else f"prefill_failed_{code}"] += 1
        if not done:
            demand_reason(self, process, room, code)
        self._close_if_over(room)

    def succeed(self, former: PrefillProcess) -> None:
        """Start another process in the place of one that may still be there."""
        successor = self._make_prefill(former.name, former.group, former.layout, former.offers)
        successor.life = former.life
        self.former.append(former)
        self.prefills[former.name] = successor
        successor.begin_life()
        successor.arm()
        for room in tuple(self.engines.open):
            self.engines.close_if_over(room)

    def _close_if_over(self, room: str) -> None:
        self.engines.close_if_over(room)
        request = self.engines.requests[room]
        demand_speed(self, request, self._undisturbed_s())

    def _undisturbed_s(self) -> float:
        """How long all requests together may take if nothing is lost: late engines, and every chunk after the other.

        Where several write the same chunks and more of these are turned away than may ask by themselves, a place may wait for
        the turn of another one's request.
        """
        options = self.options
        chunks = options.requests * -(-options.max_tokens // options.chunk_tokens) * len(self.decodes) * len(self.prefills)
        takes_turns = options.prefill_tp * options.prefill_pp > 1 and options.max_busy_at_once < chunks
        turn_s = MOST_PATIENCE * self.RETRY_LIMIT_S if takes_turns else 0.0
        return 10.0 + turn_s + chunks * (10 * options.write_s + 20 * options.delay_s)

    def _strikes(self, probability: float) -> bool:
        return not self.network.healed and self.random.random() < probability

    def _counted(self, name: str, probability: float) -> bool:
        strikes = self._strikes(probability)
        self.faults[name] += strikes
        return strikes

    # ---- shape ------------------------------------------------------------------------------------------------------------

    def _make_decodes(self) -> list[DecodeProcess]:
        options = self.options
        places = [(pp, tp) for pp in range(options.decode_pp) for tp in range(options.decode_tp)]
        return [
            DecodeProcess(self, f"d{i}", i, self._layout(tp, options.decode_tp, pp, options.decode_pp), self._rate())
            for i, (pp, tp) in enumerate(places)
        ]

    def _make_prefills(self) -> list[PrefillProcess]:
        options = self.options
        places = [(pp, tp) for pp in range(options.prefill_pp) for tp in range(options.prefill_tp)]
        made = []
        for group in range(options.groups):
            for i, (pp, tp) in enumerate(places):
                layout = self._layout(tp, options.prefill_tp, pp, options.prefill_pp)
                planes = options.planes[(group + i) % len(options.planes)]
                made.append(self._make_prefill(f"p{group}{i}", f"g{group}", layout, planes))
        return made

    def _make_prefill(self, name: str, group: str, layout: RankLayout, planes: tuple[str, ...]) -> PrefillProcess:
        return PrefillProcess(self, name, group, layout, planes, self._rate())

    def _layout(self, tp_rank: int, tp_size: int, pp_rank: int, pp_size: int) -> RankLayout:
        spec = TensorSpec("kv", self.options.heads, self.options.width, "uint8")
        model = ModelLayout(tuple((spec,) for _ in range(self.options.layers)))
        return RankLayout(model, tp_rank, tp_size, pp_rank, pp_size, even_stage_bounds(self.options.layers, pp_size))

    def _rate(self) -> float:
        return 1.0 + self.options.clock_error * (2 * self.random.random() - 1)
