"""A deployment, its engines and its misfortunes, drawn from one seed: a phase with faults, then healing, then everything must end.

Safety is checked at every step (``memory``, ``decode_process``, ``prefill_process``); liveness at the end: every room of every surviving
life has ended, every ring is empty, and without a reason to fail no room has failed.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random

from lab.simulator.decode_process import DecodeProcess
from lab.simulator.events import EventQueue
from lab.simulator.memory import RingMemory, ViolationError, source_bytes
from lab.simulator.network import Network
from lab.simulator.options import Options
from lab.simulator.prefill_process import PrefillProcess
from lab.simulator.process import Process
from lab.simulator.rules import Rules
from protocol.layout import ModelLayout, RankLayout, TensorSpec, chunk_bytes, expected_writers, rank_token_bytes
from protocol.messages import Message

FAULTY_S = 30.0
"""Virtual seconds with faults."""
NEVER = frozenset({"invalid", "bad_grant", "oversized", "scatter_failed", "layout", "superseded", "writer_taken"})
"""Failures that no fault of this world explains."""
HEALED_S = 400.0
"""Virtual seconds in which everything must end once faults have stopped."""


@dataclass(slots=True)
class Request:
    """One request of the simulated engines."""

    room: str
    group: str
    num_tokens: int
    registered_late_s: float
    submitted_late_s: float
    owners: dict[str, str] = field(default_factory=dict)
    """For each prefill rank of the group, the life that holds its pages."""


class World:
    """Everything of one run. ``run`` raises ``ViolationError`` at the first broken promise."""

    ROOM_DEADLINE_S = 40.0
    LEASE_S = 5.0
    QUARANTINE_S = 3.0

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
        model = self._model()
        self.decodes = {
            f"d{rank}": DecodeProcess(self, f"d{rank}", rank, self._layout(model, rank, options.decode_tp), self._rate())
            for rank in range(options.decode_tp)
        }
        self.prefills = {
            f"p{group}{rank}": PrefillProcess(
                self, f"p{group}{rank}", f"g{group}", self._layout(model, rank, options.prefill_tp), self._rate()
            )
            for group in range(options.groups)
            for rank in range(options.prefill_tp)
        }
        self.requests: dict[str, Request] = {}
        self._open: set[str] = set()

    # ---- the run ----------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Play the faulty phase, heal, and demand that everything ends."""
        for process in (*self.decodes.values(), *self.prefills.values()):
            process.begin_life()
            process.arm()
        self._plan_requests()
        self._plan_faults()
        while self.events.step(FAULTY_S):
            pass
        self._heal()
        while self.events.step(FAULTY_S + HEALED_S) and not self._is_over():
            pass
        self._demand_end()

    def trace(self, source: str, target: str, message: Message) -> None:
        """Tell the log what is sent, if anybody listens."""
        self.note(f"{source} -> {target}: {message}")

    def note(self, text: str) -> None:
        """Tell the log what happens, if anybody listens."""
        if self._log is not None:
            self._log(f"{self.events.now:10.4f} {text}")

    # ---- what processes ask of the world ------------------------------------------------------------------------------------

    def ring_bytes(self, layout: RankLayout) -> int:
        """The size of a decode rank's ring."""
        prefill = next(iter(self.prefills.values())).layout
        full_chunk = chunk_bytes(expected_writers(prefill, layout), self.options.chunk_tokens)
        return max(int(full_chunk * self.options.ring_chunks), rank_token_bytes(layout))

    def duration(self) -> float:
        """How long a copy takes this time."""
        return self.options.write_s * (0.2 + 2 * self.random.random() ** 3)

    def corrupts(self) -> bool:
        """Whether the write that ends now is damaged on its way."""
        if self.network.healed or self.random.random() >= self.options.faults.corruption:
            return False
        self.faults["corrupted"] += 1
        return True

    def refuses_memory(self) -> bool:
        """Whether the host has no memory for a new region just now."""
        return not self.network.healed and self.random.random() < self.options.faults.no_memory

    def send_to_decode(self, source: PrefillProcess, target: DecodeProcess, channel: str, action: Callable[[], None]) -> None:
        """Send to an address: whoever lives there at arrival gets it."""
        if not self.network.is_full():
            self.network.send(source.name, target.name, channel, lambda: target.deliver(action))

    def send_to_prefill(self, source: DecodeProcess, route: bytes, frames: list[bytes]) -> str | None:
        """Send to one life of a prefill; says why if it cannot be sent."""
        name, _, life = route.decode().partition("/")
        target = self.prefills[name]
        if target.life != int(life) or not target.alive:
            return "unroutable"
        if self.network.is_full():
            return "full"
        peer = source.name
        self.network.send(peer, name, "control", lambda: target.deliver(lambda: target.receive(peer, frames), int(life)))
        return None

    def decode_room_ended(self, process: DecodeProcess, room: str, done: bool, code: str) -> None:
        """A decode engine was told: if the room is done, every byte must be right."""
        self.note(f"{process.name}: room {room} {'done' if done else f'failed: {code}'}")
        self.results["decode_done" if done else f"decode_failed_{code}"] += 1
        if done:
            self._check_bytes(process, room)
        else:
            self._demand_reason(process, room, code)
        self._close_if_over(room)

    def prefill_room_ended(self, process: PrefillProcess, room: str, done: bool, code: str) -> None:
        """A prefill engine was told."""
        self.note(f"{process.name}: room {room} {'done' if done else f'failed: {code}'}")
        self.results["prefill_done" if done else f"prefill_failed_{code}"] += 1
        if not done:
            self._demand_reason(process, room, code)
        self._close_if_over(room)

    # ---- engines ----------------------------------------------------------------------------------------------------------

    def _plan_requests(self) -> None:
        for number in range(self.options.requests):
            request = Request(
                room=f"r{number}",
                group=f"g{self.random.randrange(self.options.groups)}",
                num_tokens=self.random.randint(1, self.options.max_tokens),
                registered_late_s=self.random.choice([0.0, 0.0, 0.01, 1.0, 4.0]),
                submitted_late_s=self.random.choice([0.0, 0.0, 0.05, 1.0]),
            )
            self.requests[request.room] = request
        self._pending = list(self.requests.values())
        self._issue()

    def _issue(self) -> None:
        """Closed loop: keep ``concurrency`` requests open."""
        while self._pending and len(self._open) < self.options.concurrency:
            request = self._pending.pop(0)
            self._open.add(request.room)
            self._start(request)

    def _start(self, request: Request) -> None:
        skip = self.options.faults.unregistered_rooms and request.room == "r0"
        for decode in self.decodes.values():
            late = request.registered_late_s * self.random.random()
            if not skip:
                self.events.after(late, partial(decode.deliver, partial(self._register, decode, request)))
        cuts = sorted({request.num_tokens, *(self.random.randint(1, request.num_tokens) for _ in range(2))})
        for prefill in self._group(request.group):
            at = request.submitted_late_s * self.random.random()
            start = 0
            for stop in cuts:
                at += self.options.write_s * self.random.random()
                self.events.after(at, partial(prefill.deliver, partial(self._submit, prefill, request, start, stop)))
                start = stop
        self.events.after(self.ROOM_DEADLINE_S * 6, lambda: self._give_up(request.room))

    def _register(self, decode: DecodeProcess, request: Request) -> None:
        decode.register_room(request.room, request.group, request.num_tokens)

    def _submit(self, prefill: PrefillProcess, request: Request, start: int, stop: int) -> None:
        if start == 0:
            request.owners[prefill.name] = prefill.owner
        if request.owners.get(prefill.name) == prefill.owner:
            prefill.submit(request.room, list(self.decodes), start, stop - start, stop == request.num_tokens)

    def _group(self, group: str) -> list[PrefillProcess]:
        return [process for process in self.prefills.values() if process.group == group]

    def _close_if_over(self, room: str) -> None:
        decodes_over = all(not d.alive or room in d.ended or room not in d.registered for d in self.decodes.values())
        prefills_over = all(not p.alive or room in p.ended or room not in p.submitted for p in self.prefills.values())
        if room in self._open and decodes_over and prefills_over:
            self._open.discard(room)
            self.events.after(0.0, self._issue)

    def _give_up(self, room: str) -> None:
        """A request whose processes died before they heard of it would keep the closed loop waiting."""
        self._open.discard(room)
        self._issue()

    # ---- faults -----------------------------------------------------------------------------------------------------------

    def _plan_faults(self) -> None:
        faults, everybody = self.options.faults, [*self.decodes.values(), *self.prefills.values()]
        for _ in range(faults.prefill_crashes):
            self._plan(lambda: self._crash(self.random.choice([*self.prefills.values()])))
        for _ in range(faults.decode_crashes):
            self._plan(lambda: self._crash(self.random.choice([*self.decodes.values()])))
        for _ in range(faults.pauses):
            self._plan(lambda: self._pause(self.random.choice(everybody), 3.0 * self.random.random()))
        for _ in range(faults.long_pauses):
            self._plan(lambda: self._pause(self.random.choice(everybody), 4.0 + 16.0 * self.random.random()))
        for _ in range(faults.partitions):
            self._plan(self._partition)
        for _ in range(faults.engine_aborts):
            self._plan(self._abort)

    def _plan(self, action: Callable[[], None]) -> None:
        self.events.at(FAULTY_S * 0.5 * self.random.random() ** 3, action)

    def _crash(self, process: Process) -> None:
        if not process.alive:
            return
        self.faults["crashed"] += 1
        self.note(f"{process.name} is killed")
        process.end_life()
        self.events.after(6.0 * self.random.random() ** 2, lambda: self._restart(process))
        for room in tuple(self._open):
            self._close_if_over(room)

    def _restart(self, process: Process) -> None:
        if process.alive:
            return
        self.results["restarts"] += 1
        self.note(f"{process.name} starts again")
        process.begin_life()
        process.arm()

    def _pause(self, process: Process, duration: float) -> None:
        self.faults["paused"] += process.alive
        self.note(f"{process.name} is stopped for {duration:.2f} s")
        process.pause(duration)

    def _partition(self) -> None:
        prefill, decode = self.random.choice([*self.prefills]), self.random.choice([*self.decodes])
        duration = self.random.choice([0.5, 3.0, 15.0]) * self.random.random()
        self.note(f"{prefill} and {decode} are cut off from each other for {duration:.2f} s")
        self.network.cut(prefill, decode, self.events.now + duration)

    def _abort(self) -> None:
        if self._open:
            room = self.random.choice(sorted(self._open))
            process = self.random.choice([*self.decodes.values(), *self.prefills.values()])
            self.note(f"{process.name}: its engine gives up room {room}")
            process.deliver(lambda: process.abort_room(room))

    def _heal(self) -> None:
        self.note("everything heals")
        self.network.healed = True
        for process in (*self.decodes.values(), *self.prefills.values()):
            self._restart(process)

    # ---- the end ----------------------------------------------------------------------------------------------------------

    def _is_over(self) -> bool:
        if self._pending or self._open:
            return False
        decodes_over = all(
            len(d.handler.state.grants) == 0 and d.registered.keys() == d.ended.keys() for d in self.decodes.values()
        )
        return decodes_over and all(p.submitted.keys() == p.ended.keys() for p in self.prefills.values())

    def _demand_end(self) -> None:
        for decode in self.decodes.values():
            if open_rooms := decode.registered.keys() - decode.ended.keys():
                raise ViolationError(f"stuck: {decode.name} never told its engine about {sorted(open_rooms)}")
            if len(decode.handler.state.grants):
                raise ViolationError(f"stuck: the ring of {decode.name} never drained")
        for prefill in self.prefills.values():
            if open_rooms := prefill.submitted.keys() - prefill.ended.keys():
                raise ViolationError(f"stuck: {prefill.name} never told its engine about {sorted(open_rooms)}")

    def _demand_reason(self, process: Process, room: str, code: str) -> None:
        """A room may fail for what was done to it, never for our own arithmetic or for messages that were merely lost."""
        faults = self.options.faults
        struck = faults.prefill_crashes or faults.decode_crashes or faults.pauses or faults.long_pauses or faults.partitions
        struck = struck or faults.engine_aborts or faults.unregistered_rooms
        if code in NEVER or (code == "corrupt" and not faults.corruption) or not (struck or faults.corruption):
            raise ViolationError(f"{process.name}: room {room} failed with {code!r} without a reason to fail")

    def _check_bytes(self, decode: DecodeProcess, room: str) -> None:
        request = self.requests[room]
        prefills = {(p.layout.tp_rank, p.layout.pp_rank): p for p in self._group(request.group)}
        writers = expected_writers(next(iter(prefills.values())).layout, decode.layout)
        for chunk in range(-(-request.num_tokens // self.options.chunk_tokens)):
            tokens = min(self.options.chunk_tokens, request.num_tokens - chunk * self.options.chunk_tokens)
            expected = b"".join(
                source_bytes(
                    request.owners[prefills[part.writer].name], room, chunk, part.writer, decode.rank, part.token_bytes * tokens
                )
                for part in writers
            )
            if decode.arrived[room].get(chunk) != expected:
                raise ViolationError(f"{decode.name}: room {room} is done and the bytes of chunk {chunk} are wrong")

    # ---- shape ------------------------------------------------------------------------------------------------------------

    def _model(self) -> ModelLayout:
        spec = TensorSpec("kv", self.options.heads, self.options.width, "uint8")
        return ModelLayout(tuple((spec,) for _ in range(self.options.layers)))

    def _layout(self, model: ModelLayout, rank: int, size: int) -> RankLayout:
        return RankLayout(model, rank, size, 0, 1, (0, self.options.layers))

    def _rate(self) -> float:
        return 1.0 + self.options.clock_error * (2 * self.random.random() - 1)
