"""Plays peers, engine and workers against one decode machine, and checks the machine's books after every step.

The model has one layer with K and V of two heads of 5 bytes: a token takes 20 bytes of a decode rank of TP 1, 10 of one of
TP 2. A chunk has 4 tokens. The ring has 100 bytes, so that two chunks of a TP 1 rank never fit one round.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import TypeVar

from decode_service.allocator import StagingAllocator
from decode_service.handler import DecodeStagingHandler
from decode_service.handler_settings import DecodeHandlerSettings, PlaneOffer
from decode_service.outputs import CopyPiece, Output, RoomDone, RoomFailed, ScatterChunk, Send
from protocol.codec import decode_to_prefill, encode
from protocol.layout import ModelLayout, PageRun, RankLayout, TensorSpec, WriterKey
from protocol.messages import (
    Abort,
    AbortAck,
    ChunkDone,
    ChunkReady,
    DataPiece,
    GrantSlice,
    GrantStatus,
    Heartbeat,
    StagingReq,
    StagingRsp,
    Subscribe,
    Subscribed,
    ToDecode,
    ToPrefill,
    Unsubscribe,
    WriteFailed,
)
from protocol.watermark import START, Watermark
from tests.unit.decode_service.books import check_books

M = TypeVar("M")

CHUNK_TOKENS = 4
PIECE_BYTES = 16
MODEL = ModelLayout(((TensorSpec("k", 2, 5, "int8"), TensorSpec("v", 2, 5, "int8")),))
SHM = PlaneOffer("shm", {"segment": "ring"}, two_sided=False, same_host=True)
ZMQ = PlaneOffer("zmq", {"port": 7700}, two_sided=True, same_host=False, piece_bytes=PIECE_BYTES)
SUM = 0x1234


def rank(tp_size: int, tp_rank: int = 0, model: ModelLayout = MODEL) -> RankLayout:
    """A rank of one pipeline stage."""
    return RankLayout(model, tp_rank, tp_size, 0, 1, (0, len(model.layers)))


def make_settings(decode: RankLayout, **changes: object) -> DecodeHandlerSettings:
    """A decode rank that offers both planes, with short round numbers for timers."""
    settings = DecodeHandlerSettings(
        decode_id="decode-0",
        decode_rank=decode.tp_rank,
        decode_incarnation=7,
        epoch=0xE0,
        host_id="host-a",
        layout=decode,
        chunk_tokens=CHUNK_TOKENS,
        planes=(SHM, ZMQ),
    )
    return replace(settings, **changes)  # type: ignore[arg-type]


def messages(outputs: Sequence[Output], kind: type[M]) -> list[M]:
    """The messages of one kind that were sent, in order."""
    return [output.message for output in outputs if isinstance(output, Send) and isinstance(output.message, kind)]


def only(outputs: Sequence[Output], kind: type[M]) -> M:
    """The one message of this kind."""
    (message,) = messages(outputs, kind)
    return message


def found(outputs: Sequence[Output], kind: type[M]) -> list[M]:
    """The outputs of one kind other than ``Send``, in order."""
    return [output for output in outputs if isinstance(output, kind)]


class Driver:
    """One decode rank and everybody around it. A step returns what the machine wants; only ``wait`` and ``pause`` take time."""

    def __init__(self, prefill_tp: int = 2, decode: RankLayout | None = None, ring: int = 100, **changes: object) -> None:
        self.prefill_tp = prefill_tp
        self.decode = decode or rank(1)
        self.allocator = StagingAllocator(ring)
        self.handler = DecodeStagingHandler(make_settings(self.decode, **changes), self.allocator, Random(1))
        self.now = 1000.0
        self.routes: dict[str, bytes] = {}
        self.attempts = 0
        self.extra_subscribers: set[str] = set()

    # ---- steps ----------------------------------------------------------------------------------------------------------

    def do(self, outputs: tuple[Output, ...]) -> tuple[Output, ...]:
        """Check what a verb returned: every message survives the wire, and the books are right."""
        for output in outputs:
            if isinstance(output, Send):
                assert decode_to_prefill(encode(output.message)) == output.message
        check_books(self.handler, self.extra_subscribers)
        return outputs

    def hear(self, message: ToDecode, route: bytes | None = None) -> tuple[Output, ...]:
        """A message arrives, by default from where its session speaks."""
        if route is None:
            assert not isinstance(message, Subscribe)
            route = self.routes.get(message.session, b"stranger")
        return self.do(self.handler.receive(route, message, self.now))

    def tick(self) -> tuple[Output, ...]:
        """Whatever is due now, and all watermarks that are owed."""
        return self.do(self.handler.tick(self.now) + self.handler.fan_out(self.now, 1000))

    def wait(self, seconds: float, *, alive: Sequence[str] = ()) -> tuple[Output, ...]:
        """Let time pass as the shell does: tick at each deadline. Sessions in ``alive`` send heartbeats meanwhile."""
        end = self.now + seconds
        outputs: tuple[Output, ...] = ()
        beat = self.now + 1.0
        while True:
            deadline = self.handler.next_deadline()
            step = min(end, beat if alive else end, end if deadline is None else max(deadline, self.now))
            self.now = step
            if alive and step >= beat:
                beat += 1.0
                for session in alive:
                    outputs += self.hear(Heartbeat(session, 0, START))
            outputs += self.tick()
            if step >= end:
                return outputs

    def pause(self, seconds: float) -> None:
        """The process does not run at all."""
        self.now += seconds

    # ---- a prefill rank -------------------------------------------------------------------------------------------------

    def subscribe_message(self, tp_rank: int = 0, *, life: int = 1, group: str = "g", **changes: object) -> Subscribe:
        """The next ``SUBSCRIBE`` of a prefill rank."""
        self.attempts += 1
        message = Subscribe(
            attempt=self.attempts,
            versions=(1, 1),
            features=("xxh3",),
            prefill_id=f"{group}-p{tp_rank}",
            group=group,
            incarnation=life,
            decode_rank=None,
            chunk_tokens=CHUNK_TOKENS,
            layout=rank(self.prefill_tp, tp_rank),
            planes=("shm",),
            host_id="host-a",
        )
        return replace(message, **changes)  # type: ignore[arg-type]

    def join(self, tp_rank: int = 0, **changes: object) -> str:
        """Subscribe and return the session."""
        message = self.subscribe_message(tp_rank, **changes)  # type: ignore[arg-type]
        route = f"{message.prefill_id}/{message.incarnation}".encode()
        session = only(self.hear(message, route), Subscribed).session
        self.routes[session] = route
        return session

    def ask(
        self, session: str, room: str, chunk: int = 0, *, start: int | None = None, tokens: int | None = None
    ) -> StagingRsp | None:
        """Ask for a chunk; the answer to this session, if there is one at once."""
        answers = messages(self.ask_all(session, room, chunk, start=start, tokens=tokens), StagingRsp)
        mine = [answer for answer in answers if answer.session == session]
        return mine[0] if mine else None

    def ask_all(
        self, session: str, room: str, chunk: int = 0, *, start: int | None = None, tokens: int | None = None
    ) -> tuple[Output, ...]:
        """Ask for a chunk of a room that was registered here; everything that this makes the machine want."""
        expected = self.tokens_of(room, chunk)
        start, tokens = expected[0] if start is None else start, expected[1] if tokens is None else tokens
        return self.hear(StagingReq(session, room, chunk, start, tokens))

    def tokens_of(self, room: str, chunk: int) -> tuple[int, int]:
        """Place of a chunk on the grid; that of a full one where the room is not known or has no such chunk."""
        live = self.handler.state.rooms.live(room)
        try:
            return live.tokens_of(chunk) if live is not None else (chunk * CHUNK_TOKENS, CHUNK_TOKENS)
        except IndexError:
            return chunk * CHUNK_TOKENS, CHUNK_TOKENS

    def grant(self, sessions: Sequence[str], room: str, chunk: int = 0) -> dict[str, GrantSlice]:
        """All writers ask: the grant as each is told it."""
        outputs = [output for session in sessions for output in self.ask_all(session, room, chunk)]
        granted = {a.session: a.grant for a in messages(outputs, StagingRsp) if a.status is GrantStatus.GRANTED and a.grant}
        assert set(granted) == set(sessions)
        return granted

    def ready_message(self, session: str, room: str, grant: GrantSlice, chunk: int = 0, attempt: int = 1) -> ChunkReady:
        """The writer's word that its bytes are there."""
        return ChunkReady(session, room, chunk, grant.alloc_id, attempt, grant.writer_bytes, SUM)

    def ready(self, session: str, room: str, grant: GrantSlice, chunk: int = 0, attempt: int = 1) -> tuple[Output, ...]:
        """Say so."""
        return self.hear(self.ready_message(session, room, grant, chunk, attempt))

    def failed(self, session: str, room: str, grant: GrantSlice, chunk: int = 0, attempt: int = 1) -> tuple[Output, ...]:
        """A one-sided write ended without completion."""
        return self.hear(WriteFailed(session, room, chunk, grant.alloc_id, attempt, "timed out"))

    def write(self, grants: dict[str, GrantSlice], room: str, chunk: int = 0) -> ScatterChunk:
        """All writers write: the scatter that follows."""
        outputs = [output for session, grant in grants.items() for output in self.ready(session, room, grant, chunk)]
        (scatter,) = found(outputs, ScatterChunk)
        return scatter

    def move(self, sessions: Sequence[str], room: str, chunk: int = 0) -> tuple[Output, ...]:
        """Carry one chunk from request to scattered."""
        return self.scattered(self.write(self.grant(sessions, room, chunk), room, chunk))

    def abort(self, session: str, room: str, abort_id: int = 1) -> tuple[Output, ...]:
        """A prefill gives a room up."""
        return self.hear(Abort(session, room, abort_id, "gone"))

    def ack(self, abort: Abort) -> tuple[Output, ...]:
        """A prefill says that its writes into the room have ended."""
        return self.hear(AbortAck(abort.session, abort.room, abort.abort_id))

    def leave(self, session: str) -> tuple[Output, ...]:
        """A prefill leaves in order."""
        return self.hear(Unsubscribe(session, "bye"))

    def piece(self, session: str, room: str, grant: GrantSlice, index: int = 0, /, **changes: object) -> tuple[Output, ...]:
        """One piece of payload arrives on the data socket; ``payload`` may lie about its size."""
        offset = index * PIECE_BYTES
        piece = DataPiece(session, room, 0, grant.alloc_id, 1, offset, min(PIECE_BYTES, grant.writer_bytes - offset))
        payload = changes.pop("payload", None)
        piece = replace(piece, **changes)  # type: ignore[arg-type]
        return self.do(self.handler.receive_data(piece, piece.num_bytes if payload is None else int(str(payload)), self.now))

    # ---- engine and workers ---------------------------------------------------------------------------------------------

    def register(
        self, room: str, tokens: int = CHUNK_TOKENS, *, group: str = "g", deadline_s: float | None = None
    ) -> tuple[Output, ...]:
        """The engine expects a room."""
        return self.do(self.handler.register_room(room, group, tokens, PageRun((0, 1, 2)), self.now, deadline_s))

    def scattered(self, scatter: ScatterChunk, bad: tuple[WriterKey, ...] = ()) -> tuple[Output, ...]:
        """The worker is done."""
        return self.do(self.handler.scatter_finished(scatter.alloc_id, bad, self.now))

    def copied(self, copy: CopyPiece) -> tuple[Output, ...]:
        """The copy of a piece has ended."""
        return self.do(self.handler.piece_copied(copy.copy_id, self.now))

    def quiet(self, session: str, *, died: bool = False) -> tuple[Output, ...]:
        """The plane has proof that no process of the session can write, perhaps because it died."""
        return self.do(self.handler.session_quiet(session, self.now, died=died))

    def replace_region(self) -> tuple[Output, ...]:
        """New memory is there, under the next epoch."""
        epoch = self.handler.settings.epoch + 1
        outputs = self.handler.region_replaced(epoch, self.handler.settings.planes, self.now)
        self.allocator = self.handler.state.grants.allocator
        return self.do(outputs)

    # ---- what can be seen -----------------------------------------------------------------------------------------------

    @property
    def watermark(self) -> Watermark:
        """The true one."""
        return self.allocator.get_watermark()

    def count(self, counter: str) -> int:
        """One of the machine's counters."""
        return self.handler.state.counters[counter]

    def live_grants(self) -> list[tuple[str, str]]:
        """``(room, state)`` of each live grant."""
        return [(grant.room.id, grant.state.value) for grant in self.handler.state.grants]


def told(outputs: Sequence[Output], session: str) -> Iterator[ToPrefill]:
    """Every message to one session."""
    return (o.message for o in outputs if isinstance(o, Send) and getattr(o.message, "session", None) == session)


def ends(outputs: Sequence[Output]) -> list[tuple[str, str]]:
    """``(room, code)`` of the rooms that ended; the code is empty for done."""
    rooms = [output for output in outputs if isinstance(output, RoomDone | RoomFailed)]
    return [(output.room, output.code if isinstance(output, RoomFailed) else "") for output in rooms]


def verdicts(outputs: Sequence[Output]) -> list[tuple[str, str, int, str]]:
    """``(session, status, attempt, code)`` of each ``CHUNK_DONE``."""
    return [(done.session, done.status.value, done.attempt, done.code) for done in messages(outputs, ChunkDone)]
