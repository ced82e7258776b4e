"""``scale``: what a chunk costs with ten prefills at one decode rank, and with a thousand at a hundred.

The shipped machines and codec under a virtual clock and a network that neither loses nor delays; the data plane is instant.
Every prefill rank sends one-chunk rooms to all decode ranks of one instance at a steady rate. A decode loop's time is what its
machine and codec take for what it hears and says, heartbeats left out: those cost each session the same, whatever is moved.
"""

import gc
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from decode_service.allocator import StagingAllocator
from decode_service.handler import DecodeStagingHandler
from decode_service.handler_settings import DecodeHandlerSettings, PlaneOffer
from decode_service.outputs import Output as DecodeOutput
from decode_service.outputs import ScatterChunk
from decode_service.outputs import Send as SendToPrefill
from decode_service.rank import FAN_OUT_BUDGET, FAN_OUT_PAUSE_S
from lab.benches.effort import Effort
from lab.benches.rows import Row, ratio_at_most
from prefill_service.handler import PrefillStagingHandler
from prefill_service.handler_settings import PrefillHandlerSettings
from prefill_service.outputs import OpenPlane, Send, WriteChunk
from prefill_service.outputs import Output as PrefillOutput
from protocol.codec import decode_to_decode, decode_to_prefill, encode
from protocol.layout import ModelLayout, PageRun, RankLayout, TensorSpec
from protocol.messages import Heartbeat, HeartbeatAck

MODEL = ModelLayout(((TensorSpec("latent", 1, 64, "uint8", sharded=False),),))
CHUNK_TOKENS = 4
GROWTH = 1.5
LEASE_S = 600.0
"""Long: the virtual seconds of this world are for chunks, and a heartbeat every 200 s is left out of the counts anyway."""


@dataclass(slots=True)
class DecodeRank:
    """One decode rank's machine, what is on its way to it, and what its loop has done."""

    handler: DecodeStagingHandler
    inbox: deque[tuple[bytes, list[bytes]]] = field(default_factory=deque)
    told_at: float = 0.0
    spent_ns: int = 0
    messages: int = 0
    chunks: int = 0


class ScaleWorld:
    """So many prefill ranks, each a group of its own, and the ranks of one decode instance that all of them send to."""

    def __init__(self, prefills: int, decodes: int, interval_s: float) -> None:
        self.now = 1.0
        self.interval_s = interval_s
        """Between two rooms, over all prefills."""
        self.decodes = {f"d{rank}": DecodeRank(_decode_machine(rank, decodes, prefills)) for rank in range(decodes)}
        self.prefills = {f"p{index}": _prefill_machine(f"p{index}", decodes) for index in range(prefills)}
        self._rooms = 0
        for name in self.prefills:
            for peer in self.decodes:
                self._do_prefill(name, self.prefills[name].add_peer(peer, self.now))
            self._settle()
        self._pass_time(1.0)
        for decode in self.decodes.values():
            decode.spent_ns = decode.messages = decode.chunks = 0

    def carry(self, rooms: int) -> None:
        """Begin that many rooms, the prefills in turn, and let each end before the next.

        Without the garbage collector, which would look through a hundred thousand sessions where a daemon has a thousand.
        """
        gc.collect()
        gc.disable()
        try:
            self._carry(rooms)
        finally:
            gc.enable()

    def _carry(self, rooms: int) -> None:
        names = list(self.prefills)
        for _ in range(rooms):
            name, room = names[self._rooms % len(names)], f"room-{self._rooms}"
            self._rooms += 1
            for decode in self.decodes.values():
                decode.handler.register_room(room, name, CHUNK_TOKENS, PageRun((0,)), self.now)
            handler = self.prefills[name]
            peers = tuple(self.decodes)
            self._do_prefill(name, handler.submit_chunk(room, peers, 0, CHUNK_TOKENS, PageRun((0,)), self.now))
            self._do_prefill(name, handler.finish_room(room, self.now))
            self._settle()
            self._pass_time(self.interval_s)

    def per_chunk(self) -> tuple[float, float]:
        """Control messages, and microseconds of decode loop, of a chunk on one decode rank."""
        chunks = sum(decode.chunks for decode in self.decodes.values())
        messages = sum(decode.messages for decode in self.decodes.values())
        return messages / chunks, sum(decode.spent_ns for decode in self.decodes.values()) / chunks / 1000

    def _pass_time(self, seconds: float) -> None:
        """Let the machines do what falls due, as their loops would, and what is owed be told at the loops' pace."""
        self.now += seconds
        for handler_name, handler in self.prefills.items():
            due = handler.next_deadline()
            if due is not None and due <= self.now:
                self._do_prefill(handler_name, handler.tick(self.now))
        for decode in self.decodes.values():
            due = decode.handler.next_deadline()
            if due is not None and due <= self.now:
                self._do_decode(decode, decode.handler.tick(self.now))
            if decode.handler.has_fan_out and self.now >= decode.told_at:
                decode.told_at = self.now + FAN_OUT_PAUSE_S
                began = time.perf_counter_ns()
                outputs = decode.handler.fan_out(self.now, FAN_OUT_BUDGET)
                decode.spent_ns += time.perf_counter_ns() - began
                self._do_decode(decode, outputs)
        self._settle()

    def _settle(self) -> None:
        """Deliver everything that is on its way, and what that leads to."""
        busy = True
        while busy:
            busy = False
            for decode in self.decodes.values():
                while decode.inbox:
                    busy = True
                    self._hear(decode, *decode.inbox.popleft())

    def _hear(self, decode: DecodeRank, route: bytes, frames: list[bytes]) -> None:
        began = time.perf_counter_ns()
        message = decode_to_decode(frames)
        outputs = decode.handler.receive(route, message, self.now)
        spent = time.perf_counter_ns() - began
        if isinstance(message, Heartbeat):
            self._do_decode(decode, outputs, counted=False)
            return
        decode.spent_ns += spent
        decode.messages += 1
        self._do_decode(decode, outputs)

    def _do_decode(self, decode: DecodeRank, outputs: tuple[DecodeOutput, ...], *, counted: bool = True) -> None:
        for output in outputs:
            if isinstance(output, SendToPrefill):
                began = time.perf_counter_ns()
                frames = encode(output.message)
                if counted and not isinstance(output.message, HeartbeatAck):
                    decode.spent_ns += time.perf_counter_ns() - began
                    decode.messages += 1
                self._deliver(decode, output.route.decode(), frames)
            elif isinstance(output, ScatterChunk):
                began = time.perf_counter_ns()
                ended = decode.handler.scatter_finished(output.alloc_id, (), self.now)
                decode.spent_ns += time.perf_counter_ns() - began
                decode.chunks += 1
                self._do_decode(decode, ended)

    def _deliver(self, decode: DecodeRank, name: str, frames: list[bytes]) -> None:
        peer = f"d{decode.handler.settings.decode_rank}"
        self._do_prefill(name, self.prefills[name].receive(peer, decode_to_prefill(frames), self.now))

    def _do_prefill(self, name: str, outputs: tuple[PrefillOutput, ...]) -> None:
        handler = self.prefills[name]
        for output in outputs:
            match output:
                case Send():
                    self.decodes[output.peer].inbox.append((name.encode(), encode(output.message)))
                case OpenPlane():
                    self._do_prefill(name, handler.plane_opened(output.peer, output.session, self.now))
                case WriteChunk():
                    self._do_prefill(name, handler.write_finished(output.write_id, None, self.now))
                case _:
                    pass


def _decode_machine(rank: int, ranks: int, prefills: int) -> DecodeStagingHandler:
    offer = PlaneOffer("shm", {"segment": "s"}, two_sided=False, same_host=True)
    settings = DecodeHandlerSettings(
        decode_id="decode",
        decode_rank=rank,
        decode_incarnation=1,
        epoch=1,
        host_id="host",
        layout=RankLayout(MODEL, rank, ranks, 0, 1, (0, 1)),
        chunk_tokens=CHUNK_TOKENS,
        planes=(offer,),
        features=(),
        heartbeat_s=LEASE_S / 3,
        lease_s=LEASE_S,
        max_sessions=2 * prefills + 100,
        max_rooms=1 << 20,
    )
    return DecodeStagingHandler(settings, StagingAllocator(1 << 20), Random(rank))


def _prefill_machine(name: str, decodes: int) -> PrefillStagingHandler:
    settings = PrefillHandlerSettings(
        prefill_id=name,
        group=name,
        incarnation=1,
        layout=RankLayout(MODEL, 0, 1, 0, 1, (0, 1)),
        page_size=CHUNK_TOKENS,
        chunk_tokens=CHUNK_TOKENS,
        planes=("shm",),
        host_id="host",
        features=(),
        max_peers=decodes + 1,
    )
    return PrefillStagingHandler(settings, Random(name))


def bench_scale(effort: Effort) -> Iterator[Row]:
    """Every prefill begins as many rooms a second in the small world as in the large one."""
    large = (effort.pick(100, 1000), effort.pick(10, 100))
    rooms_per_s = 1.0
    found = {}
    for prefills, decodes in ((10, 1), large):
        effort.view.phase(f"scale {prefills} x {decodes}", 1)
        world = ScaleWorld(prefills, decodes, 1.0 / (rooms_per_s * prefills))
        world.carry(effort.pick(100, 500) if decodes == 1 else effort.pick(60, 300))
        found[prefills, decodes] = world.per_chunk()
        effort.view.advance(1)
    small = found[10, 1]
    for index, (what, unit) in enumerate((("control messages", "messages"), ("decode loop", "us"))):
        yield Row(f"scale/{what} of a chunk, 10 x 1", small[index], unit)
        name = f"scale/{what} of a chunk, {large[0]} x {large[1]}"
        yield Row(name, found[large][index], unit, small[index], (ratio_at_most(GROWTH),))
