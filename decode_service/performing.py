"""Does what the decode machine wants done: the one ``match`` over its outputs, and the log of what it decided."""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, assert_never

from structlog.typing import FilteringBoundLogger

from decode_service.handler import DecodeStagingHandler
from decode_service.negotiating import planes_not_taken
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
from decode_service.regions.base import Plane, Quietness
from decode_service.regions.memory import copy_into
from decode_service.scatter_job import Scatter, scatter_chunk
from decode_service.surroundings import Surroundings
from decode_service.telling import Telling
from protocol.codec import encode
from protocol.layout import WriterKey
from protocol.messages import Refused, Subscribed
from runtime.endpoint import SendOutcome
from runtime.rate_limit import RateLimit
from runtime.room_waiters import RoomOutcome

if TYPE_CHECKING:
    from decode_service.rank import DecodeRank

INLINE_COPY_BYTES = 64 << 10
"""Pieces up to this size are copied at once: handing one to a worker would take longer."""


class Performing:
    """The outputs of one machine, carried out in their order; what that leads to is fed back until nothing is left."""

    def __init__(
        self,
        rank: "DecodeRank",
        handler: DecodeStagingHandler,
        around: Surroundings,
        scatter: Scatter,
        log: FilteringBoundLogger,
    ) -> None:
        self.copies = 0
        """Pieces that a worker has not copied yet."""
        self._rank = rank
        self._handler = handler
        self._around = around
        self._scatter = scatter
        self._log = log
        self._limit = RateLimit()
        self.telling = Telling(rank.rank, handler, around.telemetry, log, around.config.stall_warn_s)
        self._planes: dict[str, Plane] = {}
        """Plane of each session that was answered and is not closed."""
        self._pending: deque[Output] = deque()
        self._payload: memoryview | None = None
        self._busy = False

    def perform(self, outputs: tuple[Output, ...], now: float, payload: memoryview | None = None) -> None:
        """Carry out everything. ``payload`` is what a ``CopyPiece`` among the outputs is about."""
        if payload is not None:
            self._payload = payload
        self._pending.extend(outputs)
        if self._busy:
            return
        self._busy = True
        try:
            while self._pending:
                self._pending.extend(self._act(self._pending.popleft(), now))
        finally:
            self._busy = False
            self._payload = None

    def _act(self, output: Output, now: float) -> tuple[Output, ...]:
        match output:
            case Send():
                return self._send(output, now)
            case CopyPiece():
                return self._copy(output, now)
            case ScatterChunk():
                self._start_scatter(output)
            case RoomDone() | RoomFailed():
                self._end_room(self._outcome(output))
            case ProbeQuiet():
                return self._probe(output.session, now)
            case ReplaceRegion():
                self._rank.replace_region(output.reason)
            case ReleaseRegion():
                self._rank.release_region(output.epoch)
            case SessionClosed():
                self._forget(output.session)
            case SessionFenced() | GrantQuarantined():
                self._tell(output)
            case _:
                assert_never(output)
        return ()

    def _tell(self, output: SessionFenced | GrantQuarantined) -> None:
        """What an operator must find in the log without asking: who is listened to no more, and what pins the ring."""
        if isinstance(output, SessionFenced):
            self._log.warning("session_fenced", session=output.session, prefill_id=output.prefill_id, reason=output.reason)
            return
        where = {"alloc_id": output.alloc_id, "room": output.room, "chunk": output.chunk}
        self._log.warning("grant_quarantined", **where, waits_for=list(output.waits_for), reason=output.reason)

    def _send(self, send: Send, now: float) -> tuple[Output, ...]:
        self._note(send)
        outcome = self._rank.control.send(send.route, encode(send.message))
        if outcome is SendOutcome.SENT:
            return ()
        suppressed = self._limit.admit((send.route, outcome), now)
        if suppressed is not None:
            kind = type(send.message).__name__
            self._log.warning("send_failed", message=kind, route=send.route.hex(), reason=outcome, suppressed=suppressed)
        return self._handler.send_failed(send.route, send.message, outcome.value, now)

    def _note(self, send: Send) -> None:
        """Log the two answers to a ``SUBSCRIBE``: nobody else sees what the machine decided."""
        message = send.message
        if isinstance(message, Subscribed) and message.session not in self._planes:
            self._planes[message.session] = self._rank.region.plane(message.plane)
            detail = {"features": list(message.features), "not_taken": self._not_taken(message)}
            self._log.info("session_opened", session=message.session, plane=message.plane, **detail)
        elif isinstance(message, Refused):
            suppressed = self._limit.admit(("refused", send.route, message.code), self._around.loop.clock())
            if suppressed is not None:
                diff = [f"{row.field}: prefill {row.prefill}, decode {row.decode}" for row in message.diff]
                self._log.warning("subscribe_refused", code=message.code.value, reason=message.message, diff=diff)

    def _not_taken(self, answer: Subscribed) -> dict[str, str]:
        """Why the session does not use another plane."""
        state = self._handler.state
        session = state.sessions.get(answer.session)
        return {} if session is None else planes_not_taken(state.settings, session.request, answer.plane)

    def _copy(self, copy: CopyPiece, now: float) -> tuple[Output, ...]:
        payload = self._payload
        assert payload is not None
        ring = self._rank.region.ring.buffer
        if copy.num_bytes <= INLINE_COPY_BYTES:
            copy_into(ring, copy.offset, payload)
            return self._handler.piece_copied(copy.copy_id, now)
        self.copies += 1
        self._around.workers.submit(
            partial(copy_into, ring, copy.offset, payload), lambda _: self._copied(copy.copy_id), self._copy_failed
        )
        return ()

    def _copied(self, copy_id: int) -> None:
        self.copies -= 1
        now = self._around.loop.clock()
        self.perform(self._handler.piece_copied(copy_id, now), now)

    def _copy_failed(self, error: Exception) -> None:
        # A copy within one's own memory cannot fail but by a fault of ours, after which no byte here can be trusted.
        raise error

    def _start_scatter(self, chunk: ScatterChunk) -> None:
        pool = self._rank.pool
        assert pool is not None
        ring, verify = self._rank.region.ring.buffer, self._around.config.checksums
        job: Callable[[], tuple[WriterKey, ...]] = partial(scatter_chunk, pool, ring, chunk, self._scatter, verify=verify)
        self._around.workers.submit(job, partial(self._scattered, chunk), partial(self._scatter_failed, chunk))

    def _scattered(self, chunk: ScatterChunk, bad: tuple[WriterKey, ...]) -> None:
        now = self._around.loop.clock()
        if bad:
            writers = [f"tp {writer.tp_rank} pp {writer.pp_rank}" for writer in bad]
            self._log.warning("slices_rejected", room=chunk.room, chunk=chunk.chunk, writers=writers)
        outputs = self._handler.scatter_finished(chunk.alloc_id, bad, now)
        self.telling.chunks_completed()
        self.perform(outputs, now)

    def _scatter_failed(self, chunk: ScatterChunk, error: Exception) -> None:
        now = self._around.loop.clock()
        self._log.error("scatter_failed", room=chunk.room, chunk=chunk.chunk, exc_info=error)
        text = f"{type(error).__name__}: {error}"[:200]
        self.perform(self._handler.scatter_failed(chunk.alloc_id, text, now), now)

    def _outcome(self, output: RoomDone | RoomFailed) -> RoomOutcome:
        if isinstance(output, RoomDone):
            return RoomOutcome(output.room, self._rank.rank, done=True)
        return RoomOutcome(output.room, self._rank.rank, False, output.code, output.message)

    def _end_room(self, outcome: RoomOutcome) -> None:
        self.telling.room_ended(outcome, self._around.loop.clock())
        self._around.room_ended(outcome)

    def _probe(self, session: str, now: float) -> tuple[Output, ...]:
        plane = self._planes.get(session)
        proof = Quietness.NOT_PROVEN if plane is None else plane.quietness(session)
        if proof is Quietness.NOT_PROVEN:
            return ()
        self._log.info("session_proven_quiet", session=session, proof=proof.value)
        return self._handler.session_quiet(session, now, died=proof is Quietness.DIED)

    def _forget(self, session: str) -> None:
        plane = self._planes.pop(session, None)
        if plane is not None:
            plane.forget(session)
            self._log.info("session_closed", session=session, plane=plane.name)
