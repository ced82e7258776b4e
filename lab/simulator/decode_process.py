"""A decode rank in the simulator: the shipped machine, its ring, its copies and its engine's view of its rooms."""

from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from random import Random
from typing import TYPE_CHECKING, assert_never

from decode_service.allocator import StagingAllocator
from decode_service.grants import GrantState
from decode_service.handler import DecodeStagingHandler
from decode_service.handler_settings import DecodeHandlerSettings, PlaneOffer
from decode_service.outputs import (
    CopyPiece,
    GrantQuarantined,
    Output,
    ProbeQuiet,
    ReleaseRegion,
    ReplaceRegion,
    RoomDone,
    RoomFailed,
    ScatterChunk,
    Send,
    SessionClosed,
    SessionFenced,
)
from decode_service.rooms import RoomRefused
from lab.simulator.decode_checks import DecodeChecks
from lab.simulator.decode_words import DecodeWords
from lab.simulator.memory import RingMemory, ViolationError, checksum_of
from lab.simulator.process import Process
from protocol import codec
from protocol.errors import RemoteProtocolError
from protocol.layout import PageRun, RankLayout
from protocol.messages import DataPiece, Descriptor
from protocol.watermark import is_watermark_ready

if TYPE_CHECKING:
    from lab.simulator.world import World

PIECE_BYTES = 5
MAX_BACKLOG = 64
"""Messages that wait in senders' queues for a rank that is down."""


class DecodeProcess(Process):
    """One decode rank and its engine. ``ended`` is what the engine was told; ``arrived`` is what stands in its pages."""

    def __init__(self, world: "World", name: str, rank: int, layout: RankLayout, clock_rate: float) -> None:
        super().__init__(name, world.events, clock_rate)
        self.world = world
        self.rank = rank
        self.layout = layout
        self.handler: DecodeStagingHandler
        self.memory: RingMemory
        self.registered: dict[str, int] = {}
        """Rooms of this life: the number of tokens of each."""
        self.ended: dict[str, tuple[bool, str]] = {}
        self.arrived: dict[str, dict[int, bytes]] = {}
        self.scattering: Counter[str] = Counter()
        """Rooms with scatters that run."""
        self.backlog: deque[Callable[[], None]] = deque(maxlen=MAX_BACKLOG)
        self.totals: Counter[str] = Counter()
        self.regions: dict[int, RingMemory] = {}

    def begin_life(self) -> None:
        """Start with an empty ring in a new epoch; whoever waited to be heard is heard now."""
        super().begin_life()
        world, options = self.world, self.world.options
        size = world.ring_bytes(self.layout)
        self._random = random = Random(f"{options.seed} {self.name} {self.life}")
        self.regions = {}
        epoch = random.getrandbits(63)
        settings = DecodeHandlerSettings(
            decode_id=self.name,
            decode_rank=self.rank,
            decode_incarnation=self.life,
            epoch=epoch,
            host_id="host",
            layout=self.layout,
            chunk_tokens=options.chunk_tokens,
            planes=self._new_region(size, epoch),
            lease_s=world.LEASE_S,
            grace_s=1.0,
            quarantine_s=world.QUARANTINE_S,
            room_deadline_s=options.room_deadline_s,
            max_chunks_in_flight=options.max_chunks_in_flight,
            max_retired_regions=options.max_retired_regions,
        )
        self.handler = world.rules.decode(settings, StagingAllocator(size), random)
        self.registered, self.ended, self.arrived = {}, {}, {}
        self.scattering.clear()
        self._checks = DecodeChecks(self.name)
        self.words = DecodeWords(self.name)
        backlog, self.backlog = self.backlog, deque(maxlen=MAX_BACKLOG)
        for deliver in backlog:
            self.events.after(world.options.delay_s, deliver)

    def end_life(self) -> None:
        """Die; whoever still maps the ring writes into memory that nobody reads."""
        super().end_life()
        self.memory.may_write = None
        for memory in self.regions.values():
            memory.being_read.clear()
        self.totals.update(self.handler.state.counters)

    def machine_deadline(self) -> float | None:
        """When the machine must be ticked."""
        return self.handler.next_deadline()

    def tick(self) -> None:
        """Give the machine the time."""
        self.run(self.handler.tick(self.now))
        self.run(self.handler.fan_out(self.now, 4))

    # ---- the engine -------------------------------------------------------------------------------------------------------

    def register_room(self, room: str, group: str, num_tokens: int) -> bool:
        """The engine expects a room. False if it is refused, because its id is live or remembered."""
        try:
            outputs = self.handler.register_room(room, group, num_tokens, PageRun(()), self.now)
        except RoomRefused:
            return False
        if room in self.registered and room not in self.ended:
            raise ViolationError(f"{self.name} takes room {room} twice")
        if room in self.registered:
            self.words.room_begins(room)
        self.registered[room] = num_tokens
        self.arrived[room] = {}
        self.ended.pop(room, None)
        self.run(outputs)
        return True

    def abort_room(self, room: str) -> None:
        """The engine gives a room up."""
        if room in self.registered and room not in self.ended:
            self.run(self.handler.abort_room(room, "the engine gave it up", self.now))

    def leave(self) -> None:
        """Grant nothing new."""
        self.run(self.handler.drain(self.now))

    def has_left(self) -> bool:
        """Whether nothing is granted any more."""
        return self.handler.is_idle

    # ---- the network ------------------------------------------------------------------------------------------------------

    def receive(self, route: bytes, frames: list[bytes]) -> None:
        """A message on the control socket."""
        try:
            message = codec.decode_to_decode(frames)
        except RemoteProtocolError as error:
            self.run(self.handler.receive_error(route, error, self.now))
            return
        self.words.heard(message)
        self.run(self.handler.receive(route, message, self.now))

    def receive_data(self, frames: list[bytes], payload: bytes) -> None:
        """A piece, or the ``CHUNK_READY`` behind its pieces, on the data socket."""
        if frames[0] != b"DATA":
            self.receive(b"", frames)
            return
        try:
            piece = codec.decode_data_header(frames[1])
        except (RemoteProtocolError, IndexError):
            return
        for output in self.handler.receive_data(piece, len(payload), self.now):
            if isinstance(output, CopyPiece):
                self._copy(output, piece, payload)
            else:
                self.run((output,))

    # ---- outputs ----------------------------------------------------------------------------------------------------------

    def run(self, outputs: tuple[Output, ...]) -> None:
        """Carry out what the machine wants, then check it."""
        self.words.said(outputs, self.handler)
        for output in outputs:
            match output:
                case Send():
                    self._send(output)
                case ScatterChunk():
                    self._begin_scatter(output)
                case ProbeQuiet():
                    self._probe(output.session)
                case RoomDone():
                    self._room_ended(output.room, True, "")
                case RoomFailed():
                    self._room_ended(output.room, False, output.code)
                case CopyPiece():
                    raise AssertionError("only a received piece asks for a copy")
                case SessionFenced() | GrantQuarantined():
                    self.world.note(f"{self.name}: {output}")
                case ReplaceRegion() | ReleaseRegion() | SessionClosed():
                    self._run_for_memory(output)
                case _:
                    assert_never(output)
        self._checks.after_step(self.handler)

    def _run_for_memory(self, output: ReplaceRegion | ReleaseRegion | SessionClosed) -> None:
        if isinstance(output, ReplaceRegion):
            self.after(self.world.duration(), self._replace_region)
        elif isinstance(output, ReleaseRegion):
            self.regions[output.epoch].released = True

    def _probe(self, session: str) -> None:
        """The kernel's lock: held, given back in order, or left by a process that is gone. Only ``shm`` has one."""
        known = self.handler.state.sessions.get(session)
        has_lock = known is not None and known.answer.plane == "shm"
        if has_lock and session not in self.memory.lock_holders:
            died = session in self.memory.abandoned_locks
            self.run(self.handler.session_quiet(session, self.now, died=died))

    def _new_region(self, size: int, epoch: int) -> tuple[PlaneOffer, ...]:
        key = f"{self.name}.{self.life}.{epoch:x}"
        self.memory = RingMemory(key, bytearray(size), self._write_problem)
        self.world.memories[key] = self.regions[epoch] = self.memory
        kept = sum(not memory.released for memory in self.regions.values())
        if kept > self.world.options.max_retired_regions + 1:
            raise ViolationError(f"{self.name} keeps {kept} regions")
        descriptor: Descriptor = {"memory": key, "piece_bytes": PIECE_BYTES}
        return (
            PlaneOffer("shm", descriptor, two_sided=False, same_host=True),
            PlaneOffer("nixl", descriptor, two_sided=False, same_host=False, reaches_retired=True),
            PlaneOffer("zmq", descriptor, two_sided=True, same_host=False, piece_bytes=PIECE_BYTES),
        )

    def _replace_region(self) -> None:
        """New memory; who still maps the old one writes where only copies that run already look."""
        if self.world.refuses_memory():
            self.run(self.handler.region_unavailable("no memory", self.now))
            return
        self.world.note(f"{self.name} replaces its region")
        self.world.results["replaced_during_copy"] += any(grant.has_copies for grant in self.handler.state.grants)
        self.memory.may_write = None
        epoch = self._random.getrandbits(63)
        planes = self._new_region(len(self.memory.data), epoch)
        self.run(self.handler.region_replaced(epoch, planes, self.now))

    def _send(self, output: Send) -> None:
        self.world.trace(self.name, output.route.decode(), output.message)
        reason = self.world.send_to_prefill(self, output.route, codec.encode(output.message))
        if reason is not None:
            self.run(self.handler.send_failed(output.route, output.message, reason, self.now))

    def _copy(self, output: CopyPiece, piece: DataPiece, payload: bytes) -> None:
        memory = self.memory

        def finish() -> None:
            memory.write(piece.alloc_id, output.offset, payload)
            self.run(self.handler.piece_copied(output.copy_id, self.now))

        self.after(self.world.copy_duration(), finish)

    def _begin_scatter(self, job: ScatterChunk) -> None:
        """From now on these bytes are read, and then the pages are written."""
        memory = self.memory
        memory.being_read[job.alloc_id] = (job.slices[0].offset, job.slices[-1].offset + job.slices[-1].num_bytes)
        self.scattering[job.room] += 1
        self.after(self.world.copy_duration(), partial(self._scatter, job, memory))

    def _scatter(self, job: ScatterChunk, memory: RingMemory) -> None:
        slices = {part.layout.writer: bytes(memory.data[part.offset : part.offset + part.num_bytes]) for part in job.slices}
        bad = tuple(part.layout.writer for part in job.slices if checksum_of(slices[part.layout.writer]) != part.checksum)
        del memory.being_read[job.alloc_id]
        self.scattering[job.room] -= 1
        if memory.released:
            raise ViolationError(f"{self.name} scatters from {memory.key}, which it gave back")
        if not bad:
            if job.chunk in self.arrived[job.room]:
                raise ViolationError(f"{self.name} scatters chunk {job.chunk} of room {job.room} twice")
            self.arrived[job.room][job.chunk] = b"".join(slices.values())
        self.run(self.handler.scatter_finished(job.alloc_id, bad, self.now))

    def _room_ended(self, room: str, done: bool, code: str) -> None:
        if room in self.ended:
            raise ViolationError(f"{self.name} reports the end of room {room} twice")
        if self.scattering[room]:
            raise ViolationError(f"{self.name} gives back the pages of room {room} while it scatters into them")
        self.ended[room] = (done, code)
        self.world.decode_room_ended(self, room, done, code)

    def _write_problem(self, alloc_id: int, start: int, end: int) -> str | None:
        grant = self.handler.state.grants.get(alloc_id)
        if grant is None:
            return "the grant has ended, so these bytes may belong to another"
        if not grant.allocation.offset <= start < end <= grant.end:
            return f"outside its region [{grant.allocation.offset}, {grant.end})"
        watermark = self.handler.state.grants.allocator.get_watermark()
        if not is_watermark_ready(watermark, grant.allocation.round, grant.end):
            return f"its round {grant.allocation.round} is not free yet under {watermark}"
        return "it is being scattered" if grant.state is GrantState.SCATTERING else None
