"""How things end: grants by proof, sessions by fencing, rooms by failure. Nothing here frees memory on a guess.

Releasing a grant early needs proof, from every writer that was told ``granted``, that it will not write any more: its
``CHUNK_READY``, its ``ABORT_ACK``, its orderly departure, the kernel's word that its processes are gone, or a plane on which
this side does all the writing. A lease is never proof: it only decides whom we stop listening to.
"""

from dataclasses import dataclass

from decode_service.aborting import Aborting
from decode_service.grants import Grant, GrantState
from decode_service.history import GrantOutcome
from decode_service.outputs import GrantQuarantined, ProbeQuiet, RoomDone, RoomFailed, SessionClosed, SessionFenced
from decode_service.rooms import Room, RoomEnd
from decode_service.sessions import Session
from decode_service.state import DecodeState, TimerKey, TimerKind


@dataclass(slots=True, eq=False)
class Closing:
    """Ends grants, sessions and rooms, in the order that keeps every promise made about them."""

    state: DecodeState
    aborting: Aborting

    def fail_room(self, room: Room, code: str, message: str) -> None:
        """Fail a room for good: tell every writer, close its grants, and tell the engine once our own copies have ended."""
        if room.end is not None:
            return
        room.end = RoomEnd(code, message)
        self.state.counters[f"room_failed_{code}"] += 1
        self.state.timers.cancel(TimerKey(TimerKind.ROOM, room=room.id))
        for session in self._writers_of(room):
            self.aborting.begin(session, room)
        for chunk in tuple(room.chunks.values()):
            self.state.turns.discard(room, chunk)
            if chunk.grant is not None:
                self.close_grant(chunk.grant, f"room failed: {code}")
        self._settle_room(room)

    def finish_room(self, room: Room) -> None:
        """Every token is scattered: the pages belong to the engine again."""
        assert room.remaining == 0
        assert room.copies == 0
        assert room.end is None
        room.end = RoomEnd()
        self.state.timers.cancel(TimerKey(TimerKind.ROOM, room=room.id))
        self._bury(room, room.end)
        self.state.emit(RoomDone(room.id))

    def copy_ended(self, room: Room) -> None:
        """A copy of ours in this room has ended; a failed room may be waiting for that."""
        room.copies -= 1
        assert room.copies >= 0
        self._settle_room(room)

    def close_grant(self, grant: Grant, reason: str) -> None:
        """Let nobody join and nothing be scattered any more; release the region as soon as that is proven safe."""
        if grant.state is GrantState.OPEN:
            grant.state = GrantState.CLOSED
            grant.closed_at, grant.closed_reason = self.state.now, reason
            if (chunk := grant.room.chunks.get(grant.chunk)) is not None:
                chunk.asked.clear()
            if not grant.is_releasable:
                self._quarantine(grant)
        self.try_release(grant)

    def watch_quarantine(self, grant: Grant) -> None:
        """A closed grant waits for proof from now on, and not for ever."""
        key = TimerKey(TimerKind.QUARANTINE, chunk=grant.alloc_id)
        self.state.timers.set(key, self.state.now + self.state.settings.quarantine_s)

    def taint_grant(self, grant: Grant, reason: str) -> None:
        """Close a grant into which a failed write may still land, for as long as the region lives; its chunk gets another."""
        grant.tainted = True
        self.close_grant(grant, reason)
        self._detach(grant)

    def try_release(self, grant: Grant) -> None:
        """Free a closed grant if no writer and no copy of ours can touch it."""
        if grant.ended:
            return
        if grant.retired_epoch is not None:
            self._settle_retired(grant)
            return
        if not grant.is_releasable:
            return
        self.state.counters["grants_released"] += 1
        self.end_grant(grant, GrantOutcome.RELEASED)
        self._detach(grant)
        self.state.watermark_moved()

    def end_grant(self, grant: Grant, outcome: GrantOutcome) -> None:
        """Take a grant out of every table. The caller announces the watermark."""
        self.state.history.add(grant, outcome, self.state.now)
        self.state.timers.cancel(TimerKey(TimerKind.QUARANTINE, chunk=grant.alloc_id))
        if grant.retired_epoch is None:
            self.state.grants.end(grant)
        else:
            self.state.retired_grants.pop(grant.alloc_id, None)
            grant.ended = True
        grant.room.granted -= 1
        grant.room.granted_ready -= grant.ready
        if grant.ready_since is not None:
            self.state.turns.charge(grant.room.group, self.state.now - grant.ready_since)
        grant.room.set_clock(self.state.run_time)

    def discard_grant(self, grant: Grant) -> None:
        """It goes with its region; its chunk may be granted another."""
        self.state.counters["grants_discarded"] += 1
        self.end_grant(grant, GrantOutcome.DISCARDED)
        self._detach(grant)

    def leave_session(self, session: Session) -> None:
        """Its epoch is over: forget it, whatever its writers do to memory that is no longer ours."""
        if not session.fenced:
            self.state.sessions.fence(session, "the region was replaced")
            self.state.fanout.remove(session.id)
            self.state.timers.cancel(TimerKey(TimerKind.LEASE, session.id))
            self._drop_requests(session)
        session.unwritten.clear()
        self._forget_if_quiet(session)

    def prove_quiet(self, session: Session, room_id: str | None = None) -> None:
        """It is proven that this session writes no more (into that room, or at all)."""
        for grant in tuple(session.unwritten.values()):
            if room_id is None or grant.room.id == room_id:
                self._prove_slot(session, grant)
        self._forget_if_quiet(session)

    def prove_grant_quiet(self, session: Session, grant: Grant) -> None:
        """It is proven that this session writes no more into that grant."""
        self._prove_slot(session, grant)
        self._forget_if_quiet(session)

    def end_session(self, session: Session, reason: str, *, quiet: bool, life_over: bool) -> None:
        """Fence a current session. ``quiet``: its writes are proven over. ``life_over``: its source pages are gone too."""
        if session.fenced:
            return
        self.state.counters["sessions_fenced"] += 1
        self.state.emit(SessionFenced(session.id, session.request.prefill_id, reason))
        self.state.sessions.fence(session, reason)
        self.state.fanout.remove(session.id)
        self.state.timers.cancel(TimerKey(TimerKind.LEASE, session.id))
        self._drop_requests(session)
        quiet = quiet or session.two_sided
        for grant in session.unwritten.values():
            grant.slots[session.writer].proven |= quiet
        if life_over:
            self.fail_rooms_of_life(session, reason)
        for grant in tuple(session.unwritten.values()):
            self.close_grant(grant, f"writer fenced: {reason}")
        if quiet:
            self.prove_quiet(session)
        else:
            self._forget_if_quiet(session)
        if self.state.sessions.get(session.id) is not None:
            self.probe_quiet(session)

    def probe_process(self, session: Session) -> None:
        """Ask the plane, once, whether the session's processes are gone."""
        self.state.emit(ProbeQuiet(session.id))

    def probe_quiet(self, session: Session) -> None:
        """Ask the plane whether the session's processes are gone, now and again later."""
        self.probe_process(session)
        self.state.timers.set(TimerKey(TimerKind.QUIET, session.id), self.state.now + self.state.settings.quiet_probe_s)

    def no_longer_unwritten(self, session: Session, grant: Grant) -> None:
        """This session is quiet in that grant."""
        session.unwritten.pop(grant.alloc_id, None)
        self.state.fanout.set_waiting(session.id, bool(session.unwritten))

    def abort_acknowledged(self, session: Session, room_id: str, abort_id: int) -> None:
        """``ABORT_ACK``: proof, if it answers the abort that is current for this session and room."""
        if self.aborting.acknowledge(session, room_id, abort_id):
            self.prove_quiet(session, room_id)

    def fail_rooms_of_life(self, session: Session, reason: str) -> None:
        """The life of this session is over, and with it the source pages of every room it had begun."""
        for room in self.state.rooms:
            if room.group == session.group and room.lives.get(session.writer) == session.incarnation:
                self.fail_room(room, "prefill_gone", f"prefill {session.request.prefill_id!r}: {reason}")

    def fail_rooms_of_other_lives(self, session: Session) -> None:
        """This session's writer lives anew, so what a former life had begun will never be finished: its pages are gone."""
        for room in self.state.rooms:
            life = room.lives.get(session.writer, session.incarnation) if room.group == session.group else session.incarnation
            if life != session.incarnation:
                self.fail_room(room, "prefill_gone", f"a newer life of {session.request.prefill_id!r} subscribed")

    def _settle_retired(self, grant: Grant) -> None:
        if not grant.has_copies:
            self.discard_grant(grant)

    def _quarantine(self, grant: Grant) -> None:
        self.state.counters["grants_quarantined"] += 1
        waiting = [self.state.sessions.get(slot.session) for slot in grant.slots.values() if not slot.quiet]
        names = tuple(session.request.prefill_id for session in waiting if session is not None)
        self.state.emit(GrantQuarantined(grant.alloc_id, grant.room.id, grant.chunk, names, grant.closed_reason))
        self.watch_quarantine(grant)

    def _prove_slot(self, session: Session, grant: Grant) -> None:
        grant.slots[session.writer].proven = True
        self.no_longer_unwritten(session, grant)
        self.close_grant(grant, "writer ended its writes")

    def _detach(self, grant: Grant) -> None:
        """The chunk may be granted another region; a room that is over has no chunks."""
        chunk = grant.room.chunks.get(grant.chunk)
        if chunk is not None and chunk.grant is grant:
            chunk.grant = None

    def _writers_of(self, room: Room) -> list[Session]:
        if room.writers:
            found = (self.state.sessions.of_writer(room.group, layout.writer) for layout in room.writers)
            return [session for session in found if session is not None]
        return [session for session in self.state.sessions.of_group(room.group) if session.slice.token_bytes]

    def _settle_room(self, room: Room) -> None:
        if room.end is None or room.end.done or room.copies or self.state.rooms.live(room.id) is not room:
            return
        self._bury(room, room.end)
        self.state.emit(RoomFailed(room.id, room.end.code, room.end.message))

    def _bury(self, room: Room, end: RoomEnd) -> None:
        for layout in room.writers:
            if (session := self.state.sessions.of_writer(room.group, layout.writer)) is not None:
                session.open_chunks.difference_update((room.id, chunk) for chunk in room.chunks)
        room.chunks.clear()
        self.state.rooms.bury(room, end, self.state.now)

    def _drop_requests(self, session: Session) -> None:
        for room_id, index in session.open_chunks:
            room = self.state.rooms.live(room_id)
            chunk = room.chunks.get(index) if room is not None else None
            if room is not None and chunk is not None and chunk.asked.get(session.writer) == session.id:
                del chunk.asked[session.writer]
                self.state.turns.discard(room, chunk)
                room.set_clock(self.state.run_time)
        session.open_chunks.clear()
        for parked in self.state.parking.drop_session(session.id):
            self.state.timers.cancel(TimerKey(TimerKind.PARK, session.id, parked.room, parked.chunk))

    def _forget_if_quiet(self, session: Session) -> None:
        if not session.fenced or session.unwritten or self.state.sessions.get(session.id) is None:
            return
        self.aborting.forget(session)
        self.state.timers.cancel(TimerKey(TimerKind.QUIET, session.id))
        self.state.sessions.forget(session)
        del self.state.routes[session.id]
        self.state.emit(SessionClosed(session.id))
