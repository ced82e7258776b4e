"""Does what the prefill machine wants done: the one ``match`` over its outputs, and the log of what it decided."""

from collections import Counter, deque
from functools import partial
from typing import TYPE_CHECKING, assert_never
from urllib.parse import urlsplit

from structlog.typing import FilteringBoundLogger

from prefill_service.chunk_times import ChunkKey
from prefill_service.describing import Unsent
from prefill_service.handler import PrefillStagingHandler
from prefill_service.openings import Opened, Openings
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
from prefill_service.peer_link import PeerLink
from prefill_service.session_plane import SessionPlane, WriteEnd
from prefill_service.surroundings import Surroundings
from prefill_service.telling import Telling
from prefill_service.writers.arena import Arena
from prefill_service.writers.base import PlaneOpenError, RegionWriter
from prefill_service.writers.buffers import SendBuffers
from prefill_service.writers.one_sided import open_one_sided, register
from prefill_service.writers.shm import ShmWriter
from prefill_service.writers.zmq import ZmqWriter
from protocol.codec import encode
from protocol.errors import LayoutError, RemoteProtocolError
from protocol.layout import WriterSlice, writer_slice
from protocol.messages import (
    Refused,
    StagingReq,
    Subscribe,
    Subscribed,
    ToPrefill,
)
from runtime.endpoint import SendOutcome
from runtime.errors import StartError
from runtime.pool import KvPool
from runtime.rate_limit import RateLimit
from runtime.room_waiters import RoomOutcome

if TYPE_CHECKING:
    from prefill_service.rank import PrefillRank

LINGER_MS = 500
"""How long an ``UNSUBSCRIBE`` may take to leave a connection that is being closed."""


class Performing:
    """The outputs of one machine, carried out in their order; what that leads to is fed back until nothing is left."""

    def __init__(
        self, rank: "PrefillRank", handler: PrefillStagingHandler, around: Surroundings, log: FilteringBoundLogger
    ) -> None:
        self._rank = rank
        self._handler = handler
        self._around = around
        self._log = log
        self._limit = RateLimit()
        self.telling = Telling(rank.rank, handler, around.telemetry, log, around.config.stall_warn_s)
        self._sends: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._links: dict[str, PeerLink] = {}
        self._planes: dict[tuple[str, str], SessionPlane] = {}
        self._buffers = SendBuffers(max(1, around.config.send_buffer_bytes // len(around.config.ranks)))
        self._openings = Openings(around.loop, self._plane_settled)
        self._arena: Arena | None = None
        """Memory that the one-sided planes send from; made with the first of them."""
        self._pending: deque[Output] = deque()
        self._busy = False

    def perform(self, outputs: tuple[Output, ...], now: float) -> None:
        """Carry out everything."""
        self._pending.extend(outputs)
        if self._busy:
            return
        self._busy = True
        try:
            while self._pending:
                self._pending.extend(self._act(self._pending.popleft(), now))
        finally:
            self._busy = False

    def next_deadline(self) -> float | None:
        """When an open plane wants to be called, or it is time to look for chunks that stand still."""
        deadlines = [plane.next_deadline() for plane in self._planes.values()]
        deadlines.append(self._openings.next_deadline())
        return min((at for at in (*deadlines, self.telling.next_look()) if at is not None), default=None)

    def tick(self, now: float) -> None:
        """Let the open planes do what is due, and name the chunks that stand still."""
        self._openings.tick(now)
        for plane in tuple(self._planes.values()):
            plane.tick(now)
        self.telling.look_for_stalls(now, self.unsent)

    def counts(self) -> dict[str, object]:
        """What the sockets saw."""
        counts = {"sends": dict(self._sends), "frames_refused": dict(self._refused)}
        return {**counts, "planes_open": len(self._planes), "handshakes_failed": self._around.connections.counts()}

    def unsent(self) -> dict[str, Unsent]:
        """What could not be sent lately, by decode endpoint."""
        found = ((peer, link.unsent()) for peer, link in self._links.items())
        return {peer: unsent for peer, unsent in found if unsent is not None}

    def close(self, linger_ms: int) -> None:
        """Close every plane and connection."""
        self._openings.close()
        for plane in self._planes.values():
            plane.close()
        for link in self._links.values():
            link.close(linger_ms)
        self._planes.clear()
        self._links.clear()

    def _act(self, output: Output, now: float) -> tuple[Output, ...]:
        match output:
            case Send():
                self._send(output, now)
            case Connect():
                self._connect(output.peer)
            case Disconnect():
                self._disconnect(output.peer)
            case OpenPlane():
                return self._open_plane(output, now)
            case ClosePlane():
                self._close_plane(output)
            case WriteChunk():
                self.telling.times.started(ChunkKey(output.room, output.peer, output.chunk), now)
                self._planes[output.peer, output.session].start(output)
            case RoomDone():
                self._end_room(RoomOutcome(output.room, self._rank.rank, done=True))
            case RoomFailed():
                self._end_room(RoomOutcome(output.room, self._rank.rank, False, output.code, output.message))
            case _:
                assert_never(output)
        return ()

    # ---- messages -------------------------------------------------------------------------------------------------------

    def _connect(self, peer: str) -> None:
        try:
            self._links[peer] = PeerLink(peer, self._around, self._receive, self._refuse)
        except StartError as error:
            # Tried again with the next message: the machine repeats what it wants to say.
            if self._limit.admit(("connect", peer), self._around.loop.clock()) is not None:
                self._log.warning("connect_failed", peer=peer, reason=str(error))

    def _disconnect(self, peer: str) -> None:
        link = self._links.pop(peer, None)
        if link is not None:
            link.close(LINGER_MS)
            self._log.info("peer_left", peer=peer)

    def _send(self, send: Send, now: float) -> None:
        if isinstance(send.message, StagingReq):
            self.telling.times.asked(ChunkKey(send.message.room, send.peer, send.message.chunk), now)
        outcome = self._send_data(send) if send.channel is Channel.DATA else self._send_control(send)
        self._sends[outcome.value] += 1
        # A peer that is not there yet is no trouble: daemons start in any order.
        if outcome is not SendOutcome.SENT and not isinstance(send.message, Subscribe):
            suppressed = self._limit.admit((send.peer, outcome), now)
            if suppressed is not None:
                kind = type(send.message).__name__
                self._log.warning("send_failed", message=kind, peer=send.peer, reason=outcome, suppressed=suppressed)

    def _send_control(self, send: Send) -> SendOutcome:
        if send.peer not in self._links:
            self._connect(send.peer)
        link = self._links.get(send.peer)
        return SendOutcome.UNROUTABLE if link is None else link.send(send.message)

    def _send_data(self, send: Send) -> SendOutcome:
        plane = self._planes.get((send.peer, send.message.session or "")) if hasattr(send.message, "session") else None
        if plane is None:
            return SendOutcome.UNROUTABLE
        return SendOutcome.SENT if plane.send(encode(send.message)) else SendOutcome.FULL

    def _receive(self, peer: str, message: ToPrefill) -> None:
        now = self._around.loop.clock()
        self._note(peer, message, now)
        self.perform(self._handler.receive(peer, message, now), now)

    def _refuse(self, peer: str, error: RemoteProtocolError) -> None:
        self._refused[error.code] += 1
        suppressed = self._limit.admit(("malformed", peer), self._around.loop.clock())
        if suppressed is not None:
            detail = {"code": error.code, "field": error.field, "expected": error.expected}
            self._log.warning("frame_refused", peer=peer, suppressed=suppressed, **detail)

    def _note(self, peer: str, message: ToPrefill, now: float) -> None:
        """Tell what only passes through here."""
        self.telling.heard(peer, message, now)
        match message:
            case Subscribed():
                detail = {"decode_id": message.decode_id, "decode_rank": message.decode_rank, "plane": message.plane}
                not_taken = self._not_taken(peer, message.plane)
                self._log.info("subscribe_answered", peer=peer, session=message.session, **detail, not_taken=not_taken)
            case Refused():
                if self._limit.admit(("refused", peer, message.code), now) is not None:
                    diff = [f"{row.field}: prefill {row.prefill}, decode {row.decode}" for row in message.diff]
                    self._log.warning("subscribe_refused", peer=peer, code=message.code, reason=message.message, diff=diff)
            case _:
                pass

    def _not_taken(self, peer: str, taken: str) -> dict[str, str]:
        """Why each other plane is not used with this peer, as far as this side knows."""
        selection, known = self._around.access.selection, self._handler.state.peers.get(peer)
        failed = {} if known is None else known.failed_planes
        offered = f"offered; the decode rank took {taken}"
        reasons = {plane: failed.get(plane, offered) for plane in selection.planes if plane != taken}
        return {**selection.left_out, **reasons}

    # ---- planes and writes ----------------------------------------------------------------------------------------------

    def _open_plane(self, order: OpenPlane, now: float) -> tuple[Output, ...]:
        try:
            layout = writer_slice(self._handler.settings.layout, order.layout)
            if order.plane in self._around.access.initiators:
                self._openings.start(order, partial(self._open_one_sided, order, self._arena_for(layout)))
                return ()
            writer = self._open_writer(order)
        except (PlaneOpenError, LayoutError) as error:
            return self._plane_failed(order, error, now)
        return self._plane_opened(order, layout, writer, now)

    def _plane_settled(self, order: OpenPlane, opened: Opened) -> None:
        """What became of a plane that took its time."""
        now = self._around.loop.clock()
        if isinstance(opened, PlaneOpenError):
            self.perform(self._plane_failed(order, opened, now), now)
        else:
            layout = writer_slice(self._handler.settings.layout, order.layout)
            self.perform(self._plane_opened(order, layout, opened, now), now)

    def _plane_failed(self, order: OpenPlane, error: Exception, now: float) -> tuple[Output, ...]:
        self._log.warning("plane_open_failed", peer=order.peer, plane=order.plane, reason=str(error))
        return self._handler.plane_failed(order.peer, order.session, str(error)[:200], now)

    def _plane_opened(self, order: OpenPlane, layout: WriterSlice, writer: RegionWriter, now: float) -> tuple[Output, ...]:
        around, config = self._around, self._around.config
        self._planes[order.peer, order.session] = SessionPlane(
            writer,
            layout,
            self._pool,
            around.loop,
            around.workers,
            self._write_ended,
            checksums=config.checksums,
            stall_s=config.transfer_timeout_s,
        )
        self._log.info("plane_opened", peer=order.peer, session=order.session, plane=order.plane)
        return self._handler.plane_opened(order.peer, order.session, now)

    def _arena_for(self, layout: WriterSlice) -> Arena:
        config, access = self._around.config, self._around.access
        if self._arena is None:
            arena = Arena(max(1, config.send_buffer_bytes // len(config.ranks)))
            for initiator in access.initiators.values():
                register(initiator, arena)
            self._arena = arena
        self._arena.check(layout.token_bytes * config.chunk_tokens)
        return self._arena

    def _open_one_sided(self, order: OpenPlane, arena: Arena) -> RegionWriter:
        return open_one_sided(order, self._around.access.initiators[order.plane], arena)

    def _open_writer(self, order: OpenPlane) -> RegionWriter:
        config, planes = self._around.config, self._around.access.selection.planes
        if order.plane not in planes:
            raise PlaneOpenError(f"plane: expected one of {', '.join(planes)}, got {order.plane!r}")
        if order.plane == "shm":
            return ShmWriter(config.shm_dir, order.region, order.session, order.ring_size)
        host = urlsplit(order.peer).netloc.rpartition(":")[0]
        connections = self._around.connections
        connect = partial(connections.connect, server=order.peer)
        return ZmqWriter(self._around.context, order.region, host, self._buffers, connect, connections.forget)

    def _pool(self) -> KvPool:
        assert self._rank.pool is not None
        return self._rank.pool

    def _close_plane(self, order: ClosePlane) -> None:
        plane = self._planes.pop((order.peer, order.session), None)
        if plane is not None:
            plane.close()
            self._log.info("plane_closed", peer=order.peer, session=order.session)

    def _write_ended(self, end: WriteEnd) -> None:
        now, write = self._around.loop.clock(), end.write
        if end.failure is None:
            self.telling.times.written(ChunkKey(write.room, write.peer, write.chunk), now)
            self.perform(self._handler.write_finished(write.write_id, end.checksum, now), now)
            return
        if self._limit.admit(("write", write.peer), now) is not None:
            self._log.warning("write_failed", peer=write.peer, room=write.room, chunk=write.chunk, reason=end.failure)
        self.perform(self._handler.write_failed(write.write_id, end.failure, now), now)

    def _end_room(self, outcome: RoomOutcome) -> None:
        self.telling.room_ended(outcome, self._around.loop.clock())
        self._around.room_ended(outcome)
