"""What the log, the metrics and the spans are told of one prefill rank's rooms and chunks.

Watches what the shell sends and hears; the machine knows nothing of it, and nothing here decides anything.
"""

from collections.abc import Callable, Mapping

from structlog.typing import FilteringBoundLogger

from prefill_service.chunk_times import ChunkKey, ChunkTimes
from prefill_service.describing import Unsent
from prefill_service.explaining import explain_chunk, waiting_chunks
from prefill_service.handler import PrefillStagingHandler
from protocol.messages import ChunkDone, DoneStatus, GrantStatus, StagingRsp, ToPrefill
from runtime.room_tally import RoomTallies
from runtime.room_waiters import RoomOutcome
from runtime.stall_watch import StallWatch
from runtime.telemetry import ChunkTiming, Telemetry


class Telling:
    """One line per chunk and per room, and one for each chunk that stands still."""

    def __init__(
        self,
        rank: int,
        handler: PrefillStagingHandler,
        telemetry: Telemetry,
        log: FilteringBoundLogger,
        stall_warn_s: float,
    ) -> None:
        self.times = ChunkTimes()
        self._rank = rank
        self._handler = handler
        self._telemetry = telemetry
        self._log = log
        self._stalls: StallWatch[tuple[str, str, int]] = StallWatch(stall_warn_s)
        self._tallies = RoomTallies()

    def room_submitted(self, room: str, now: float, traceparent: str | None) -> None:
        """The engine hands over tokens of this room: what it comes to is counted from now on."""
        self._tallies.begin(room, now, traceparent)

    def heard(self, peer: str, message: ToPrefill, now: float) -> None:
        """A message is about to reach the machine: note the stages that it ends."""
        match message:
            case StagingRsp(status=GrantStatus.GRANTED):
                self.times.granted(ChunkKey(message.room, peer, message.chunk), now)
            case ChunkDone(status=DoneStatus.SCATTERED) | StagingRsp(status=GrantStatus.DONE):
                self._completed(ChunkKey(message.room, peer, message.chunk), now)
            case _:
                pass

    def room_ended(self, outcome: RoomOutcome, now: float) -> None:
        """A room is over."""
        self.times.forget(outcome.room)
        line = self._tallies.end(outcome.room, now)
        if outcome.done:
            self._log.info("room_completed", room=outcome.room, **line)
        else:
            self._log.warning("room_failed", room=outcome.room, code=outcome.code, reason=outcome.message, **line)

    def next_look(self) -> float | None:
        """When ``look_for_stalls`` wants to be called."""
        return self._stalls.next_look if len(self._handler.state.rooms) else None

    def look_for_stalls(self, now: float, unsent: Callable[[], Mapping[str, Unsent]] = dict) -> None:
        """Name the chunks that have stood still for too long, each again when it has waited twice as long.

        ``unsent``: what could not be sent lately, by decode endpoint.
        """
        if now < self._stalls.next_look:
            return
        state = self._handler.as_of(now)
        for (room_id, peer, index), waited_s in self._stalls.look(now, waiting_chunks(state)):
            room = state.rooms.live(room_id)
            if room is not None:
                found = explain_chunk(state, room, room.targets[peer].open[index], unsent())
                line = {"state": found.state, "waited_s": round(waited_s, 3), "why": found.summary}
                coming = [str(step) for step in found.next]
                self._log.warning("chunk_stalled", room=room_id, chunk=index, peer=peer, **line, coming=coming)

    def _completed(self, key: ChunkKey, now: float) -> None:
        """Say of a chunk that is in its pages, the first time this is heard, how long each stage took."""
        moments = self.times.done(key, now)
        if moments is None:
            return
        room, session = self._handler.state.rooms.live(key.room), self._handler.state.session_of(key.peer)
        target = None if room is None else room.targets.get(key.peer)
        chunk = None if target is None else target.open.get(key.chunk)
        num_bytes = 0 if session is None or chunk is None else session.share.token_bytes * chunk.num_tokens
        traceparent = None if room is None else room.traceparent
        timing = ChunkTiming(self._rank, key.room, key.chunk, num_bytes, moments, traceparent, key.peer)
        self._telemetry.chunk(timing)
        self._tallies.chunk(key.room, num_bytes)
        trace = {} if traceparent is None else {"traceparent": traceparent}
        line = {"peer": key.peer, "num_bytes": num_bytes, **timing.line(), **trace}
        self._log.debug("chunk_completed", room=key.room, chunk=key.chunk, **line)
