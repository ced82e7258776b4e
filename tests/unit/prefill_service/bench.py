"""A prefill machine on the bench: every test is its decode ranks, its shell and its clock.

One KV tensor of two heads and ``width`` bytes, prefill TP 1, decode TP 2: each decode rank takes ``width`` bytes of every token
from this one writer, and a chunk of ``CHUNK_TOKENS`` tokens has ``CHUNK_TOKENS * width`` bytes.
"""

from collections.abc import Iterable
from dataclasses import replace
from random import Random
from typing import Any, Final, TypeVar

from prefill_service.handler import PrefillStagingHandler
from prefill_service.handler_settings import PrefillHandlerSettings
from prefill_service.outputs import OpenPlane, Output, Send, WriteChunk
from protocol.layout import ModelLayout, PageRun, RankLayout, TensorSpec
from protocol.messages import (
    ChunkDone,
    DoneStatus,
    GrantSlice,
    GrantStatus,
    Heartbeat,
    HeartbeatAck,
    StagingReq,
    StagingRsp,
    Subscribe,
    Subscribed,
    ToPrefill,
    WatermarkUpdate,
)
from protocol.watermark import START, Watermark

T = TypeVar("T")

CHUNK_TOKENS: Final = 10
PAGE_SIZE: Final = 5
WIDTH: Final = 6
RING: Final = 100
LEASE_S: Final = 10.0
PAGES: Final = PageRun(tuple(range(100)))


def rank_layout(tp_rank: int = 0, tp_size: int = 1, *, heads: int = 2, width: int = WIDTH) -> RankLayout:
    """One layer with one tensor."""
    return RankLayout(ModelLayout(((TensorSpec("kv", heads, width, "u8"),),)), tp_rank, tp_size, 0, 1, (0, 1))


def make_settings(**changes: Any) -> PrefillHandlerSettings:
    """Settings of the bench's rank, with these changes."""
    fixed: dict[str, Any] = {
        "prefill_id": "prefill-0",
        "group": "group-0",
        "incarnation": 1000,
        "layout": rank_layout(),
        "page_size": PAGE_SIZE,
        "chunk_tokens": CHUNK_TOKENS,
        "planes": ("shm", "zmq"),
        "host_id": "host-a",
    }
    return PrefillHandlerSettings(**{**fixed, **changes})


def of_type(outputs: Iterable[Output], kind: type[T]) -> list[T]:
    """The outputs of one type, in order."""
    return [output for output in outputs if isinstance(output, kind)]


def sent(outputs: Iterable[Output], kind: type[T], peer: str | None = None) -> list[T]:
    """The messages of one type that are sent, to anyone or to one peer."""
    sends = (output for output in of_type(outputs, Send) if peer in {None, output.peer})
    return [send.message for send in sends if isinstance(send.message, kind)]


def granted(alloc_id: int, offset: int = 0, round: int = 0, num_bytes: int = CHUNK_TOKENS * WIDTH) -> GrantSlice:
    """A grant of which this writer has the whole."""
    return GrantSlice(alloc_id, offset, round, offset + num_bytes, 0, num_bytes)


class Bench:
    """The machine, a clock, and what its decode ranks last said of themselves."""

    def __init__(self, **changes: Any) -> None:
        self.now = 100.0
        self.handler = PrefillStagingHandler(make_settings(**changes), Random(7))
        self.sessions: dict[str, str] = {}
        """Current session of each peer."""
        self.minted = 0
        self.answers_heartbeats = True

    @property
    def counters(self) -> dict[str, int]:
        """What the machine has dropped, ignored and repeated."""
        return dict(self.handler.state.counters)

    def is_idle(self) -> bool:
        """Whether the machine has nothing to do for any room."""
        return self.handler.is_idle

    def is_stopped(self) -> bool:
        """Whether the machine's life is over."""
        return self.handler.is_stopped

    # ---- time -----------------------------------------------------------------------------------------------------------

    def run(self, seconds: float) -> tuple[Output, ...]:
        """Let time pass; heartbeats are answered unless the test says otherwise. Everything the machine wanted meanwhile."""
        end, out = self.now + seconds, list[Output]()
        while (at := self.handler.next_deadline()) is not None and at <= end:
            self.now = max(self.now, at)
            step = self.handler.tick(self.now)
            out += step
            for send in of_type(step, Send):
                if self.answers_heartbeats and isinstance(send.message, Heartbeat):
                    out += self.hear(send.peer, HeartbeatAck(send.message.session, send.message.seq))
        self.now = end
        return tuple(out)

    # ---- being a decode rank --------------------------------------------------------------------------------------------

    def hear(self, peer: str, message: ToPrefill) -> tuple[Output, ...]:
        """Let the machine hear this message now."""
        return self.handler.receive(peer, message, self.now)

    def answer(self, subscribe: Subscribe, rank: int = 0, **changes: Any) -> Subscribed:
        """What a decode rank of TP 2 answers, with a session of its own."""
        self.minted += 1
        usual = Subscribed(
            attempt=subscribe.attempt,
            incarnation=subscribe.incarnation,
            version=1,
            features=(),
            session=f"session-{self.minted}",
            decode_id=f"decode-{rank}",
            decode_incarnation=5,
            decode_rank=rank,
            epoch=77,
            ring_size=RING,
            plane=subscribe.planes[0],
            region={"name": "ring"},
            heartbeat_s=1.0,
            lease_s=LEASE_S,
            layout=rank_layout(rank, 2, width=subscribe.layout.model.layers[0][0].width),
        )
        return replace(usual, **changes)

    def accept(self, peer: str, outputs: Iterable[Output], rank: int = 0, **changes: Any) -> tuple[Output, ...]:
        """Answer the last ``SUBSCRIBE`` among ``outputs`` and open the plane."""
        answer = self.answer(sent(outputs, Subscribe, peer)[-1], rank, **changes)
        self.sessions[peer] = answer.session
        opening = self.hear(peer, answer)
        (plane,) = of_type(opening, OpenPlane)
        return opening + self.handler.plane_opened(peer, plane.session, self.now)

    def connect(self, peer: str = "d0", rank: int = 0, **changes: Any) -> str:
        """Join a decode rank and bring its session up."""
        self.accept(peer, self.handler.add_peer(peer, self.now), rank, **changes)
        return self.sessions[peer]

    def respond(
        self,
        peer: str,
        room: str,
        chunk: int,
        status: GrantStatus,
        grant: GrantSlice | None = None,
        watermark: tuple[int, int] = START,
        message: str = "",
        session: str | None = None,
    ) -> tuple[Output, ...]:
        """Answer a request."""
        place = (session or self.sessions[peer], room, chunk)
        return self.hear(peer, StagingRsp(*place, status, Watermark(*watermark), grant, message))

    def grant(
        self, peer: str, room: str, chunk: int, grant: GrantSlice, watermark: tuple[int, int] = START
    ) -> tuple[Output, ...]:
        """Grant a request."""
        return self.respond(peer, room, chunk, GrantStatus.GRANTED, grant, watermark)

    def watermark(self, peer: str, round: int, tail: int, session: str | None = None) -> tuple[Output, ...]:
        """Announce a watermark."""
        return self.hear(peer, WatermarkUpdate(round, tail, session or self.sessions[peer]))

    def judge(
        self, peer: str, room: str, chunk: int, alloc_id: int, status: DoneStatus, attempt: int = 1, session: str | None = None
    ) -> tuple[Output, ...]:
        """Give a verdict on what was written."""
        return self.hear(peer, ChunkDone(session or self.sessions[peer], room, chunk, alloc_id, attempt, status))

    # ---- being the engine and the shell ---------------------------------------------------------------------------------

    def submit(
        self, room: str, tokens: int, *, decode: Iterable[str] = ("d0",), start: int = 0, source: PageRun = PAGES
    ) -> tuple[Output, ...]:
        """Hand over tokens of a room."""
        return self.handler.submit_chunk(room, tuple(decode), start, tokens, source, self.now)

    def whole_room(self, room: str, tokens: int = CHUNK_TOKENS, *, decode: Iterable[str] = ("d0",)) -> tuple[Output, ...]:
        """Hand over all tokens of a room."""
        return self.submit(room, tokens, decode=decode) + self.handler.finish_room(room, self.now)

    def finish(self, write: WriteChunk, checksum: int | None = 99) -> tuple[Output, ...]:
        """Report a write as complete."""
        return self.handler.write_finished(write.write_id, checksum, self.now)

    def fail(self, write: WriteChunk, reason: str = "it broke") -> tuple[Output, ...]:
        """Report a write as failed."""
        return self.handler.write_failed(write.write_id, reason, self.now)

    # ---- short cuts -----------------------------------------------------------------------------------------------------

    def writing(self, room: str = "r", alloc_id: int = 1, peer: str = "d0") -> WriteChunk:
        """A room of one chunk whose write runs."""
        assert sent(self.whole_room(room, decode=(peer,)), StagingReq)
        (write,) = of_type(self.grant(peer, room, 0, granted(alloc_id)), WriteChunk)
        return write

    def written(self, room: str = "r", alloc_id: int = 1, peer: str = "d0") -> WriteChunk:
        """A room of one chunk whose bytes are visible and announced."""
        write = self.writing(room, alloc_id, peer)
        self.finish(write)
        return write

    def state_of(self, room: str = "r", chunk: int = 0, peer: str = "d0") -> str:
        """State of an open chunk."""
        live = self.handler.state.rooms.live(room)
        assert live is not None
        return live.targets[peer].open[chunk].state.value
