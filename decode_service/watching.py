"""What time brings: silent sessions are probed and fenced, late rooms fail, and what was not answered is repeated.

A lease is never proof. It only decides whom we stop listening to; memory is given up in ``closing`` and only on proof.
"""

from dataclasses import dataclass
from typing import assert_never

from decode_service.closing import Closing
from decode_service.granting import Granting
from decode_service.replacing import Replacing
from decode_service.rooms import Room
from decode_service.state import DecodeState, TimerKey, TimerKind


@dataclass(slots=True, eq=False)
class Watching:
    """Carries out each deadline that has come."""

    state: DecodeState
    closing: Closing
    granting: Granting
    replacing: Replacing

    def due(self, key: TimerKey) -> None:
        """Do what this deadline is for; one that no longer matters does nothing."""
        match key.kind:
            case TimerKind.LEASE:
                self._check_lease(key.session)
            case TimerKind.QUIET:
                self._check_quiet(key.session)
            case TimerKind.ABORT:
                self.closing.aborting.retry(key.session, key.room)
            case TimerKind.PARK:
                self.granting.park_expired(key.session, key.room, key.chunk)
            case TimerKind.ROOM:
                self._check_room(key.room)
            case TimerKind.QUARANTINE:
                self.replacing.quarantine_over(key.chunk)
            case _:
                assert_never(key.kind)

    def _check_lease(self, session_id: str) -> None:
        """Fence a session that was silent for too long; before that, ask the plane whether a silent one is dead."""
        session = self.state.sessions.current(session_id)
        if session is None:
            return
        settings = self.state.settings
        silent_s = self.state.now - session.last_received
        fence_after_s = settings.lease_s + settings.grace_s
        if silent_s >= fence_after_s:
            self.closing.end_session(session, f"silent for {silent_s:.1f} s", quiet=False, life_over=False)
            return
        if silent_s >= 2 * settings.heartbeat_s and not session.two_sided:
            self.closing.probe_process(session)
        step = max(2 * settings.heartbeat_s - silent_s, settings.heartbeat_s)
        at = min(self.state.now + step, session.last_received + fence_after_s)
        self.state.timers.set(TimerKey(TimerKind.LEASE, session_id), at)

    def _check_quiet(self, session_id: str) -> None:
        session = self.state.sessions.get(session_id)
        if session is not None and session.fenced:
            self.closing.probe_quiet(session)

    def _check_room(self, room_id: str) -> None:
        """Fail a room whose own time is used up, or that has lived longer than any room may."""
        room = self.state.rooms.live(room_id)
        if room is None or room.end is not None:
            return
        settings = self.state.settings
        cap = room.registered_at + room.deadline_s * settings.room_deadline_cap
        used_s = room.clock.read(self.state.run_time)
        if self.state.now >= cap or used_s >= room.deadline_s:
            self.closing.fail_room(room, "deadline", self._late_text(room, used_s))
            return
        at = min(cap, self.state.now + max(room.deadline_s - used_s, settings.watch_s))
        self.state.timers.set(TimerKey(TimerKind.ROOM, room=room_id), at)

    def _late_text(self, room: Room, used_s: float) -> str:
        arrived = len(room.scattered) - room.remaining
        progress = f"{arrived} of {len(room.scattered)} chunks arrived"
        if used_s >= room.deadline_s:
            return f"{progress} in {used_s:.1f} s (deadline {room.deadline_s:g} s)"
        limit = f"deadline {room.deadline_s:g} s x room_deadline_cap {self.state.settings.room_deadline_cap:g}"
        lived = f"{progress} in the {self.state.now - room.registered_at:.1f} s since it was registered (limit {limit})"
        if room.started:
            return f"{lived}; its own clock stands at {used_s:.1f} s: it queued behind others"
        if any(session.slice.token_bytes for session in self.state.sessions.of_group(room.group)):
            return f"prefill group {room.group!r} is subscribed and asked for nothing: {lived}"
        return f"nobody of prefill group {room.group!r} is subscribed: {lived}"
