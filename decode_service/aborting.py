"""``ABORT`` to prefill ranks: repeated until acknowledged, and for no longer than somebody gains by it.

An acknowledgement is proof only for the abort that is current for its session and room, so each has an id of its own.
"""

from collections import Counter
from dataclasses import dataclass, field

from decode_service.rooms import Room
from decode_service.sessions import Session
from decode_service.state import DecodeState, TimerKey, TimerKind
from protocol.messages import Abort
from protocol.timers import Backoff


@dataclass(slots=True)
class PendingAbort:
    """An ``ABORT`` that is repeated until its session acknowledges it."""

    abort_id: int
    reason: str
    backoff: Backoff


@dataclass(slots=True, eq=False)
class Aborting:
    """Every abort that waits for its acknowledgement, at most one per session and room."""

    state: DecodeState
    pending: dict[tuple[str, str], PendingAbort] = field(default_factory=dict)
    _pending_in: Counter[str] = field(default_factory=Counter)
    _next_abort_id: int = 1

    def begin(self, session: Session, room: Room) -> None:
        """Tell a writer that its room has failed."""
        assert room.end is not None
        backoff = Backoff(self.state.settings.abort_retry_s, self.state.settings.retry_limit_s)
        pending = PendingAbort(self._next_abort_id, f"{room.end.code}: {room.end.message}"[:512], backoff)
        self._next_abort_id += 1
        self.pending[session.id, room.id] = pending
        self._pending_in[room.id] += 1
        self._send(session, room.id, pending)

    def acknowledge(self, session: Session, room_id: str, abort_id: int) -> bool:
        """End the abort that this answers; ``False`` and no change if it answers none that is current."""
        pending = self.pending.get((session.id, room_id))
        if pending is None or pending.abort_id != abort_id:
            self.state.counters["abort_acks_ignored"] += 1
            return False
        self._end(session.id, room_id)
        return True

    def retry(self, session_id: str, room_id: str) -> None:
        """The ack did not come in time: send the same ``ABORT`` again, while its proof or the room's end matters to anyone."""
        session, pending = self.state.sessions.get(session_id), self.pending.get((session_id, room_id))
        if session is None or pending is None:
            return
        remembered = self.state.rooms.live(room_id) is not None or self.state.rooms.over(room_id) is not None
        if remembered or any(grant.room.id == room_id for grant in session.unwritten.values()):
            self._send(session, room_id, pending)
        else:
            self._end(session_id, room_id)

    def is_pending(self, room_id: str) -> bool:
        """Whether somebody still owes an acknowledgement for a room of that id: until then it must name no other."""
        return room_id in self._pending_in

    def forget(self, session: Session) -> None:
        """The session is over and quiet: it owes no answer any more."""
        for session_id, room_id in [key for key in self.pending if key[0] == session.id]:
            self._end(session_id, room_id)

    def _send(self, session: Session, room_id: str, pending: PendingAbort) -> None:
        self.state.send(session, Abort(session.id, room_id, pending.abort_id, pending.reason))
        key = TimerKey(TimerKind.ABORT, session.id, room_id)
        self.state.timers.set(key, self.state.now + pending.backoff.next_interval(self.state.random))

    def _end(self, session_id: str, room_id: str) -> None:
        del self.pending[session_id, room_id]
        self._pending_in[room_id] -= 1
        if not self._pending_in[room_id]:
            del self._pending_in[room_id]
        self.state.timers.cancel(TimerKey(TimerKind.ABORT, session_id, room_id))
