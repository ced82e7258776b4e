"""``fanout``: what one free costs the decode loop, from the end of its scatter until everybody who waits for it has been told.

The machine of a decode rank and its codec, without sockets. Ten sessions hold grants that they have not written; another one's
chunks before theirs are scattered one after the other, so that each free moves the watermark. What is told to the rest of the
subscribers later, in the loop's own time, is a row of its own.
"""

import gc
import time
from collections.abc import Iterator
from random import Random

from decode_service.allocator import StagingAllocator
from decode_service.handler import DecodeStagingHandler
from decode_service.handler_settings import DecodeHandlerSettings, PlaneOffer
from decode_service.outputs import CopyPiece, Output, ScatterChunk, Send
from decode_service.rank import FAN_OUT_BUDGET
from lab.benches.effort import Effort
from lab.benches.rows import Row, median, ratio_at_most
from protocol import PROTOCOL_VERSION
from protocol.codec import encode
from protocol.layout import ModelLayout, PageRun, RankLayout, TensorSpec
from protocol.messages import (
    ChunkReady,
    DataPiece,
    GrantSlice,
    StagingReq,
    StagingRsp,
    Subscribe,
    Subscribed,
    ToDecode,
    WatermarkUpdate,
)

LAYOUT = RankLayout(ModelLayout(((TensorSpec("k", 1, 64, "uint8"),),)), 0, 1, 0, 1, (0, 1))
CHUNK_TOKENS = 4
WAITING = 10
SUBSCRIBERS = (1, 10, 100, 1_000, 10_000)
BASE = 10
GROWTH = 2.0
FREES_A_BATCH = 20
"""One batch is told every 0.1 s: a busy rank frees a few hundred times a second."""
WORKER = "worker"


class Told:
    """One decode machine with ``subscribers`` sessions, the first ten of which wait for the watermark."""

    def __init__(self, subscribers: int, frees: int, *, dead: bool = False) -> None:
        offer = PlaneOffer("zmq", {"port": 1}, two_sided=True, same_host=False, piece_bytes=1 << 20)
        settings = DecodeHandlerSettings(
            decode_id="decode",
            decode_rank=0,
            decode_incarnation=1,
            epoch=1,
            host_id="host",
            layout=LAYOUT,
            chunk_tokens=CHUNK_TOKENS,
            planes=(offer,),
            max_sessions=2 * subscribers + 100,
            max_chunks_in_flight=1 << 20,
            group_share=1.0,
            grant_horizon=1024.0,
        )
        self.now = 1.0
        self.handler = DecodeStagingHandler(settings, StagingAllocator(1 << 30), Random(1))
        self._sessions = {name: self._subscribe(name) for name in [WORKER, *(f"p{index}" for index in range(subscribers))]}
        self._grants = [self._grant(WORKER, index) for index in range(frees)]
        self._next = 0
        for index in range(min(WAITING, subscribers)):
            self._grant(f"p{index}", 0)
        self._tell_all()
        if dead:
            self._let_die([f"p{index}" for index in range(WAITING, subscribers)])

    def free_us(self) -> float:
        """Microseconds from the end of a chunk's scatter until all frames of those who wait are made."""
        alloc_id = self._grants[self._next]
        self._next += 1
        began = time.perf_counter_ns()
        outputs = self.handler.scatter_finished(alloc_id, (), self.now)
        told = make_frames(outputs)
        spent = time.perf_counter_ns() - began
        assert told > 0
        return spent / 1000

    def background_us(self) -> tuple[float, int]:
        """Microseconds of telling one batch of those who do not wait, and how many that were."""
        began = time.perf_counter_ns()
        told = make_frames(self.handler.fan_out(self.now, FAN_OUT_BUDGET))
        return (time.perf_counter_ns() - began) / 1000, told

    def _subscribe(self, name: str) -> str:
        message = Subscribe(
            1, (PROTOCOL_VERSION, PROTOCOL_VERSION), (), name, name, 1, None, CHUNK_TOKENS, LAYOUT, ("zmq",), "elsewhere"
        )
        outputs = self.handler.receive(name.encode(), message, self.now)
        return next(o.message.session for o in outputs if isinstance(o, Send) and isinstance(o.message, Subscribed))

    def _grant(self, name: str, index: int) -> int:
        """A grant for a room of one chunk; the worker's is written at once, so that only its scatter is outstanding."""
        room, session = f"{name}-{index}", self._sessions[name]
        self.handler.register_room(room, name, CHUNK_TOKENS, PageRun((0,)), self.now)
        grant = granted(self._hear(name, StagingReq(session, room, 0, 0, CHUNK_TOKENS)))
        if name == WORKER:
            # The bytes of a two-sided plane would come as pieces; here one piece is counted and nothing is copied.
            self._write(session, room, grant)
        return grant.alloc_id

    def _write(self, session: str, room: str, grant: GrantSlice) -> None:
        piece = DataPiece(session, room, 0, grant.alloc_id, 1, 0, grant.writer_bytes)
        outputs = self.handler.receive_data(piece, grant.writer_bytes, self.now)
        copy_id = next(output.copy_id for output in outputs if isinstance(output, CopyPiece))
        self.handler.piece_copied(copy_id, self.now)
        outputs = self._hear(WORKER, ChunkReady(session, room, 0, grant.alloc_id, 1, grant.writer_bytes, None))
        assert any(isinstance(output, ScatterChunk) for output in outputs)

    def _hear(self, name: str, message: ToDecode) -> tuple[Output, ...]:
        return self.handler.receive(name.encode(), message, self.now)

    def _tell_all(self) -> None:
        while self.handler.has_fan_out:
            self.handler.fan_out(self.now, FAN_OUT_BUDGET)

    def _let_die(self, names: list[str]) -> None:
        """Their queues are full: what was sent to them would have blocked."""
        for name in names:
            message = WatermarkUpdate(0, 0, self._sessions[name])
            self.handler.send_failed(name.encode(), message, "full", self.now)


def granted(outputs: tuple[Output, ...]) -> GrantSlice:
    """The grant among the outputs."""
    for output in outputs:
        if isinstance(output, Send) and isinstance(output.message, StagingRsp) and output.message.grant is not None:
            return output.message.grant
    raise RuntimeError(f"nothing was granted: {outputs}")


def make_frames(outputs: tuple[Output, ...]) -> int:
    """Encode every message among the outputs, and count them."""
    messages = [output.message for output in outputs if isinstance(output, Send)]
    for message in messages:
        encode(message)
    return len(messages)


def bench_fanout(effort: Effort) -> Iterator[Row]:
    """All sizes take turns; now and then a batch of those who do not wait is told, as a busy loop does between frees."""
    frees = effort.pick(60, 1000)
    effort.view.phase("fanout: subscribing", len(SUBSCRIBERS) + 1)
    sizes = (BASE, SUBSCRIBERS[-1]) if effort.short else SUBSCRIBERS
    worlds = {f"{number} subscribers": Told(number, frees) for number in sizes}
    if not effort.short:
        worlds[f"{SUBSCRIBERS[-1]} subscribers, all but {WAITING} dead or stopped"] = Told(SUBSCRIBERS[-1], frees, dead=True)
    costs: dict[str, list[float]] = {name: [] for name in worlds}
    batches: list[float] = []
    gc.collect()
    gc.disable()
    try:
        for number in range(frees):
            for name, world in worlds.items():
                costs[name].append(world.free_us())
                if number % FREES_A_BATCH:
                    continue
                spent, told = world.background_us()
                if told == FAN_OUT_BUDGET:
                    batches.append(spent / told)
    finally:
        gc.enable()
    base = median(costs[f"{BASE} subscribers"])
    for name, spent_us in costs.items():
        targets = (ratio_at_most(GROWTH),) if name.startswith(str(SUBSCRIBERS[-1])) else ()
        yield Row(f"fanout/{name}", median(spent_us), "us", base, targets)
    yield Row("fanout/each subscriber that does not wait, told later", median(batches), "us")
