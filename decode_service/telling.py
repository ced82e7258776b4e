"""What the log, the metrics and the spans are told of one decode rank's rooms and chunks.

Reads what the machine has written down; nothing here decides anything.
"""

from structlog.typing import FilteringBoundLogger

from decode_service.explaining import explain_chunk, waiting_chunks
from decode_service.handler import DecodeStagingHandler
from decode_service.history import GrantOutcome, GrantRecord
from runtime.room_tally import RoomTallies
from runtime.room_waiters import RoomOutcome
from runtime.stall_watch import StallWatch
from runtime.telemetry import ChunkTiming, Telemetry


class Telling:
    """One line per chunk and per room, and one for each chunk that stands still."""

    def __init__(
        self,
        rank: int,
        handler: DecodeStagingHandler,
        telemetry: Telemetry,
        log: FilteringBoundLogger,
        stall_warn_s: float,
    ) -> None:
        self._rank = rank
        self._handler = handler
        self._telemetry = telemetry
        self._log = log
        self._stalls: StallWatch[tuple[str, int]] = StallWatch(stall_warn_s)
        self._tallies = RoomTallies()
        self._recorded = 0
        """Grants that have ended and were told of."""

    def room_registered(self, room: str, now: float) -> None:
        """The engine expects this room: what it comes to is counted from now on."""
        self._tallies.begin(room, now)

    def chunks_completed(self) -> None:
        """Say of every chunk that has reached its pages since the last call how long each stage took."""
        history = self._handler.state.history
        for record in history.after(self._recorded):
            if record.outcome is GrantOutcome.CONSUMED:
                self._completed(record)
        self._recorded = history.total

    def room_ended(self, outcome: RoomOutcome, now: float) -> None:
        """A room is over."""
        line = self._tallies.end(outcome.room, now)
        if outcome.done:
            self._log.info("room_completed", room=outcome.room, **line)
        else:
            self._log.warning("room_failed", room=outcome.room, code=outcome.code, reason=outcome.message, **line)

    def look_for_stalls(self, now: float) -> None:
        """Name the chunks that have stood still for too long, each again when it has waited twice as long."""
        if now < self._stalls.next_look:
            return
        state = self._handler.as_of(now)
        for (room_id, index), waited_s in self._stalls.look(now, waiting_chunks(state)):
            room = state.rooms.live(room_id)
            if room is not None:
                found = explain_chunk(state, room, room.chunks[index])
                line = {"state": found.state, "waited_s": round(waited_s, 3), "why": found.summary}
                coming = [str(step) for step in found.next]
                self._log.warning("chunk_stalled", room=room_id, chunk=index, prefills=found.prefills, **line, coming=coming)

    def _completed(self, record: GrantRecord) -> None:
        moments = (record.asked_at, record.granted_at, record.ready_at, record.written_at, record.ended_at)
        place = (self._rank, record.room, record.chunk, record.num_bytes)
        timing = ChunkTiming(*place, moments, record.traceparent, record.group)
        self._telemetry.chunk(timing)
        self._tallies.chunk(record.room, record.num_bytes, record.traceparent)
        trace = {} if record.traceparent is None else {"traceparent": record.traceparent}
        line = {"group": record.group, "num_bytes": record.num_bytes, **timing.line(), **trace}
        self._log.debug("chunk_completed", room=record.room, chunk=record.chunk, alloc_id=record.alloc_id, **line)
