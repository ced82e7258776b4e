"""A prefill rank in the simulator: the shipped machine, its planes and writes, and its engine's view of its rooms."""

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING, assert_never

from lab.simulator.memory import ViolationError, source_bytes
from lab.simulator.network import CONTROL, DATA
from lab.simulator.prefill_checks import BelievedWatermarks
from lab.simulator.process import Process
from lab.simulator.promises import Promises
from lab.simulator.writes import OpenedPlane, Writes
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
from protocol.errors import RemoteProtocolError
from protocol.layout import PageRun, RankLayout, WriterKey
from protocol.messages import StagingRsp, WatermarkUpdate

if TYPE_CHECKING:
    from lab.simulator.world import World


class PrefillProcess(Process):
    """One prefill rank and its engine. ``ended`` is what the engine was told."""

    def __init__(
        self, world: "World", name: str, group: str, layout: RankLayout, planes: tuple[str, ...], clock_rate: float
    ) -> None:
        super().__init__(name, world.events, clock_rate)
        self.world = world
        self.group = group
        self.layout = layout
        self.offers = planes
        self.writer = WriterKey(layout.tp_rank, layout.pp_rank)
        self.handler: PrefillStagingHandler
        self.submitted: dict[str, str] = {}
        """Rooms of this life, and the name of the content that the engine computed for each."""
        self.ended: dict[str, tuple[bool, str]] = {}
        self.totals: Counter[str] = Counter()
        self.connections: Counter[str] = Counter()
        """How often the connection to each decode rank was made anew: each time it has another routing id."""
        self.planes: dict[str, OpenedPlane] = {}

    def route(self, decode: str) -> bytes:
        """The routing id of the connection to a decode rank."""
        return f"{self.name}/{self.life}/{self.connections[decode]}".encode()

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
            planes=self.offers,
            host_id="host",
            features=("xxh3",),
            room_deadline_s=options.room_deadline_s * options.prefill_patience,
            room_tombstone_s=options.room_deadline_s,
            stop_wait_s=options.stop_wait_s,
            max_writes_in_flight=3,
            max_busy_at_once=options.max_busy_at_once,
            max_write_failures=10,
        )
        self.handler = self.world.rules.prefill(settings, random)
        self.submitted, self.ended, self.planes = {}, {}, {}
        self.writes = Writes(self, self._write_ended)
        self._promises = Promises(self.name)
        self._believed = BelievedWatermarks(self.name)

    def end_life(self) -> None:
        """Die: the kernel drops its locks, and no write of it goes on."""
        super().end_life()
        self.totals.update(self.handler.state.counters)
        for session, opened in self.planes.items():
            if session in opened.memory.lock_holders:
                opened.memory.lock_holders.discard(session)
                opened.memory.abandoned_locks.add(session)

    def machine_deadline(self) -> float | None:
        """When the machine must be ticked."""
        return self.handler.next_deadline()

    def tick(self) -> None:
        """Give the machine the time."""
        self.run(self.handler.tick(self.now))

    # ---- the engine -------------------------------------------------------------------------------------------------------

    def submit(self, room: str, content: str, decode: Sequence[str], start: int, num_tokens: int) -> bool:
        """The engine has computed more tokens of a room. False if they are refused: the room is over, or must not begin."""
        source = PageRun(tuple(range(start + num_tokens)))
        try:
            outputs = self.handler.submit_chunk(room, decode, start, num_tokens, source, self.now)
        except RoomRefused:
            return False
        if start == 0:
            if room in self.submitted and room not in self.ended:
                raise ViolationError(f"{self.name} takes the first tokens of room {room} twice")
            self.submitted[room] = content
            self.ended.pop(room, None)
            self._promises.room_begins(room)
        self.run(outputs)
        return True

    def finish(self, room: str) -> None:
        """The engine has no more tokens for a room."""
        if room in self.submitted:
            try:
                outputs = self.handler.finish_room(room, self.now)
            except RoomRefused:
                return
            self.run(outputs)

    def abort_room(self, room: str) -> None:
        """The engine gives a room up."""
        if room in self.submitted and room not in self.ended:
            self.run(self.handler.abort_room(room, now=self.now, reason="the engine gave it up"))

    def leave(self) -> None:
        """Fail what is live and leave every peer."""
        self.run(self.handler.stop(self.now))

    def has_left(self) -> bool:
        """Whether every peer has been left."""
        return self.handler.is_stopped

    # ---- the network ------------------------------------------------------------------------------------------------------

    def receive(self, peer: str, frames: list[bytes]) -> None:
        """A message from a decode rank."""
        try:
            message = codec.decode_to_prefill(frames)
        except RemoteProtocolError:
            return
        self._promises.heard(peer, message)
        self.run(self.handler.receive(peer, message, self.now))
        if isinstance(message, WatermarkUpdate | StagingRsp):
            decode = self.world.decodes[peer]
            self._believed.check(self.handler, peer, decode.handler if decode.alive else None)

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
        self._promises.sent(output.peer, output.message, self.writes.running.values(), self.now)
        channel = DATA if output.channel is Channel.DATA else CONTROL
        self.world.send_to_decode(self, self.world.decodes[output.peer], channel, codec.encode(output.message))

    def _open(self, output: OpenPlane) -> None:
        key = output.region["memory"]
        assert isinstance(key, str)
        memory = self.world.memories[key]
        problem = "no segment" if output.plane == "shm" and memory.may_write is None else ""
        problem = problem or ("no such device" if self.world.fails_plane(output.plane) else "")
        if problem:
            self.after(0.0, lambda: self.run(self.handler.plane_failed(output.peer, output.session, problem, self.now)))
            return
        if output.plane == "shm":
            memory.lock_holders.add(output.session)
        self.planes[output.session] = OpenedPlane(output.plane, memory, self.world.decodes[output.peer].rank)
        self.after(0.0, lambda: self.run(self.handler.plane_opened(output.peer, output.session, self.now)))

    def _close(self, output: ClosePlane) -> None:
        if any(write.session == output.session for write in self.writes.running.values()):
            raise ViolationError(f"{self.name} closes the plane of {output.session} while it writes")
        opened = self.planes.pop(output.session, None)
        if opened is not None:
            opened.memory.lock_holders.discard(output.session)

    def _write(self, write: WriteChunk) -> None:
        if write.room in self.ended:
            raise ViolationError(f"{self.name} writes from pages of room {write.room}, which the engine has back")
        self._promises.writes(write, self.now)
        opened = self.planes[write.session]
        content = self.submitted[write.room]
        payload = source_bytes(self.owner, content, write.chunk, self.writer, opened.rank, write.num_bytes)
        self.writes.start(write, opened, payload)

    def _write_ended(self, write: WriteChunk, checksum: int, failure: str | None) -> None:
        if failure is None:
            self.run(self.handler.write_finished(write.write_id, checksum, self.now))
        else:
            self.run(self.handler.write_failed(write.write_id, failure, self.now))

    def _room_ended(self, room: str, done: bool, code: str) -> None:
        if room in self.ended:
            raise ViolationError(f"{self.name} reports the end of room {room} twice")
        if any(write.room == room for write in self.writes.running.values()):
            raise ViolationError(f"{self.name} gives back the pages of room {room} while it writes from them")
        self.ended[room] = (done, code)
        self.world.prefill_room_ended(self, room, done, code)
