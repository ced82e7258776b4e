"""A prefill rank in the simulator: the shipped machine, its writes (which can be torn, late and orphaned), and its engine."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TYPE_CHECKING, assert_never

from lab.simulator.decode_process import PIECE_BYTES
from lab.simulator.memory import RingMemory, ViolationError, checksum_of, source_bytes
from lab.simulator.process import Process
from prefill_service.handler import PrefillStagingHandler
from prefill_service.handler_settings import PrefillHandlerSettings
from prefill_service.outputs import (
    Channel,
    ClosePlane,
    Connect,
    Disconnect,
    OpenPlane,
    Output,
    RoomDone,
    RoomFailed,
    Send,
    WriteChunk,
)
from prefill_service.rooms import RoomRefused
from protocol import codec
from protocol.layout import PageRun, RankLayout, WriterKey
from protocol.messages import DataPiece

if TYPE_CHECKING:
    from lab.simulator.world import World


@dataclass(frozen=True, slots=True)
class OpenedPlane:
    """One session's way into a ring."""

    plane: str
    memory: RingMemory
    rank: int


class PrefillProcess(Process):
    """One prefill rank and its engine. ``ended`` is what the engine was told."""

    def __init__(self, world: "World", name: str, group: str, layout: RankLayout, clock_rate: float) -> None:
        super().__init__(name, world.events, clock_rate)
        self.world = world
        self.group = group
        self.layout = layout
        self.writer = WriterKey(layout.tp_rank, layout.pp_rank)
        self.handler: PrefillStagingHandler
        self.submitted: dict[str, int] = {}
        self.ended: dict[str, tuple[bool, str]] = {}
        self.totals: Counter[str] = Counter()
        self._planes: dict[str, OpenedPlane] = {}
        self._writing: dict[int, WriteChunk] = {}

    @property
    def route(self) -> bytes:
        """The routing id of this life's connections."""
        return f"{self.name}/{self.life}".encode()

    @property
    def owner(self) -> str:
        """Names the life whose pages a room's bytes come from."""
        return f"{self.name}/{self.life}"

    def begin_life(self) -> None:
        """Start with no sessions and no rooms, as a newer incarnation."""
        super().begin_life()
        options = self.world.options
        random = Random(f"{options.seed} {self.name} {self.life}")
        settings = PrefillHandlerSettings(
            prefill_id=self.name,
            group=self.group,
            incarnation=self.life,
            layout=self.layout,
            page_size=1,
            chunk_tokens=options.chunk_tokens,
            planes=(options.plane,),
            host_id="host",
            features=("xxh3",),
            room_deadline_s=self.world.ROOM_DEADLINE_S,
            max_writes_in_flight=3,
        )
        self.handler = self.world.rules.prefill(settings, random)
        self.submitted, self.ended, self._planes, self._writing = {}, {}, {}, {}

    def end_life(self) -> None:
        """Die: the kernel drops its locks, and no write of it goes on."""
        super().end_life()
        for session, opened in self._planes.items():
            if session in opened.memory.lock_holders:
                opened.memory.lock_holders.discard(session)
                opened.memory.abandoned_locks.add(session)

    def machine_deadline(self) -> float | None:
        return self.handler.next_deadline()

    def tick(self) -> None:
        self.run(self.handler.tick(self.now))

    # ---- the engine -------------------------------------------------------------------------------------------------------

    def submit(self, room: str, decode: list[str], start: int, num_tokens: int, last: bool) -> None:
        """The engine has computed more tokens of a room. What is refused by now has failed before."""
        source = PageRun(tuple(range(start + num_tokens)))
        try:
            self.submitted[room] = start + num_tokens
            self.run(self.handler.submit_chunk(room, decode, start, num_tokens, source, self.now))
            if last:
                self.run(self.handler.finish_room(room, self.now))
        except RoomRefused:
            if room not in self.ended:
                del self.submitted[room]

    def abort_room(self, room: str) -> None:
        """The engine gives a room up."""
        if room in self.submitted and room not in self.ended:
            self.run(self.handler.abort_room(room, now=self.now, reason="the engine gave it up"))

    # ---- the network ------------------------------------------------------------------------------------------------------

    def receive(self, peer: str, frames: list[bytes]) -> None:
        """A message from a decode rank."""
        self.run(self.handler.receive(peer, codec.decode_to_prefill(frames), self.now))

    # ---- outputs ----------------------------------------------------------------------------------------------------------

    def run(self, outputs: tuple[Output, ...]) -> None:
        """Carry out what the machine wants."""
        for output in outputs:
            match output:
                case Send():
                    self._send(output)
                case OpenPlane():
                    self._open(output)
                case ClosePlane():
                    self._close(output)
                case WriteChunk():
                    self._write(output)
                case RoomDone():
                    self._room_ended(output.room, True, "")
                case RoomFailed():
                    self._room_ended(output.room, False, output.code)
                case Connect() | Disconnect():
                    pass
                case _:
                    assert_never(output)

    def _send(self, output: Send) -> None:
        self.world.trace(self.name, output.peer, output.message)
        frames = codec.encode(output.message)
        target = self.world.decodes[output.peer]
        if output.channel is Channel.DATA:
            self.world.send_to_decode(self, target, "data", lambda: target.receive_data(frames, b""))
        else:
            route = self.route
            self.world.send_to_decode(self, target, "control", lambda: target.receive(route, frames))

    def _open(self, output: OpenPlane) -> None:
        key = output.region["memory"]
        assert isinstance(key, str)
        memory = self.world.memories[key]
        if output.plane == "shm" and memory.may_write is None:
            self.after(0.0, lambda: self.run(self.handler.plane_failed(output.peer, output.session, "no segment", self.now)))
            return
        if output.plane == "shm":
            memory.lock_holders.add(output.session)
        self._planes[output.session] = OpenedPlane(output.plane, memory, output.layout.tp_rank)
        self.after(0.0, lambda: self.run(self.handler.plane_opened(output.peer, output.session, self.now)))

    def _close(self, output: ClosePlane) -> None:
        if any(write.session == output.session for write in self._writing.values()):
            raise ViolationError(f"{self.name} closes the plane of {output.session} while it writes")
        opened = self._planes.pop(output.session, None)
        if opened is not None:
            opened.memory.lock_holders.discard(output.session)

    def _write(self, write: WriteChunk) -> None:
        if write.room in self.ended:
            raise ViolationError(f"{self.name} writes from pages of room {write.room}, which the engine has back")
        self._writing[write.write_id] = write
        opened = self._planes[write.session]
        payload = source_bytes(self.owner, write.room, write.chunk, self.writer, opened.rank, write.num_bytes)
        steps = self._into_ring(write, opened, payload) if opened.plane == "shm" else self._over_wire(write, payload)
        self._advance(write, steps, checksum_of(payload))

    def _advance(self, write: WriteChunk, steps: Iterator[Callable[[], None]], checksum: int) -> None:
        def next_step() -> None:
            step = next(steps, None)
            if step is None:
                del self._writing[write.write_id]
                self.run(self.handler.write_finished(write.write_id, checksum, self.now))
                return
            step()
            self._advance(write, steps, checksum)

        self.after(self.world.duration() / 2, next_step)

    def _into_ring(self, write: WriteChunk, opened: OpenedPlane, payload: bytes) -> Iterator[Callable[[], None]]:
        half = len(payload) // 2
        for start, stop in ((0, half), (half, len(payload))):
            part = payload[start:stop]
            if part:
                yield partial(opened.memory.write, write.alloc_id, write.offset + start, part)
        if self.world.corrupts():
            yield lambda: opened.memory.flip(write.offset)

    def _over_wire(self, write: WriteChunk, payload: bytes) -> Iterator[Callable[[], None]]:
        if self.world.corrupts():
            payload = bytes([payload[0] ^ 0x5A]) + payload[1:]
        target = self.world.decodes[write.peer]
        for offset in range(0, len(payload), PIECE_BYTES):
            part = payload[offset : offset + PIECE_BYTES]
            piece = DataPiece(write.session, write.room, write.chunk, write.alloc_id, write.attempt, offset, len(part))
            frames = codec.encode_data(piece)
            action = partial(target.receive_data, frames, part)
            yield partial(self.world.send_to_decode, self, target, "data", action)

    def _room_ended(self, room: str, done: bool, code: str) -> None:
        if room in self.ended:
            raise ViolationError(f"{self.name} reports the end of room {room} twice")
        if any(write.room == room for write in self._writing.values()):
            raise ViolationError(f"{self.name} gives back the pages of room {room} while it writes from them")
        self.ended[room] = (done, code)
        self.world.prefill_room_ended(self, room, done, code)
