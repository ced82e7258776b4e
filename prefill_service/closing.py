"""How rooms end, and what must be true before anybody is told so.

1. A failure is final, and it is the room's: whatever target it came from, nothing of the room is written to any target again
   and every other decode rank hears of it at once.
2. The engine hears of the end only when no write of the room runs on any target: until then its source pages are being read.
3. ``ABORT`` and ``ABORT_ACK`` to a decode rank promise that no write of ours into this room runs or will run there. They wait
   for exactly those writes, counted one by one, and the address they go to is kept until then. Where a one-sided write of the
   session has failed, that cannot be promised any more: ``WRITE_FAILED`` goes out in their place, each time.
4. Whoever speaks of a room that is over, or was never here, gets an answer: an ``ABORT`` is acknowledged each time it comes.
"""

from dataclasses import dataclass

from prefill_service.chunks import Chunk, ChunkEvent
from prefill_service.outputs import RoomDone, RoomFailed
from prefill_service.rooms import Room, RoomRefused, Target, UnknownRoomError
from prefill_service.sessions import Peer, PendingAbort, Session
from prefill_service.state import PrefillState, TimerKey, TimerKind
from prefill_service.writes import Write
from protocol.limits import MAX_TEXT_BYTES
from protocol.messages import Abort, AbortAck


@dataclass(slots=True, eq=False)
class Closing:
    """Fails and completes rooms, and speaks and answers aborts."""

    state: PrefillState
    _next_abort_id: int = 1

    def fail_room(self, room: Room, code: str, message: str, spared: str | None = None) -> None:
        """Fail a live room for good. ``spared``: a decode endpoint that needs no ``ABORT``, because the failure is its word."""
        if room.failure is not None:
            return
        room.failure = RoomFailed(room.id, code, message)
        self.state.counters["rooms_failed"] += 1
        for target in room.targets.values():
            for chunk in target.open.values():
                self.withdraw(chunk)
                chunk.apply(ChunkEvent.DROPPED, self.state.now)
            target.open.clear()
            target.abort_due = target.known and target.peer != spared
        self.settle(room)

    def fail_rooms_of(self, peer: Peer, code: str, message: str) -> None:
        """Fail every room that goes to this decode endpoint."""
        for room in self.state.rooms.of_peer(peer.endpoint):
            self.fail_room(room, code, f"{peer.endpoint}: {message}")

    def decode_restarted(self, peer: Peer) -> None:
        """Another process answers at this endpoint: what the former one knew is gone, and so is every room it answered for."""
        for room_id in tuple(peer.aborts):
            self._end_abort(peer, room_id)
        for room in self.state.rooms.of_peer(peer.endpoint):
            target = room.targets[peer.endpoint]
            answered, target.known, target.answered, target.abort_due = target.answered, False, False, False
            if answered:
                self.fail_room(room, "decode_restarted", f"{peer.endpoint}: the decode process that knew this room is gone")

    def withdraw(self, chunk: Chunk) -> None:
        """Let nothing more happen for this chunk by itself: no write starts, no retry comes. A running write goes on alone."""
        self.state.writes.discard(chunk)
        self.state.timers.cancel(TimerKey(TimerKind.CHUNK, chunk.peer, chunk.room, chunk.index))
        session = self.state.session_of(chunk.peer)
        if session is not None:
            session.gate.withdraw(chunk)
            session.busy.pop(chunk, None)
        chunk.write_id = None

    def write_ended(self, write: Write) -> None:
        """A write of this room does not run any more: say what could not be said before."""
        if self.state.rooms.live(write.room.id) is write.room:
            self.settle(write.room)

    def settle(self, room: Room) -> None:
        """Send the aborts and acks that are due, and end the room if nothing of it runs."""
        for target in room.targets.values():
            self._settle_target(room, target)
        if not room.is_quiet:
            return
        if room.failure is not None:
            self._bury(room, room.failure)
        elif room.is_complete:
            self.state.counters["rooms_done"] += 1
            self._bury(room, RoomDone(room.id))

    def deadline_due(self, room_id: str) -> None:
        """Fail the room if its time is over, else look again when it could be."""
        room = self.state.rooms.live(room_id)
        if room is None or room.failure is not None:
            return
        due = self._deadline(room)
        if due > self.state.now:
            self.state.timers.set(TimerKey(TimerKind.ROOM, room=room_id), due)
        else:
            self.fail_room(room, "deadline", self._what_it_waits_for(room))

    def watch(self, room: Room) -> None:
        """Start the clock of a new room."""
        self.state.timers.set(TimerKey(TimerKind.ROOM, room=room.id), self._deadline(room))

    def abort_by_engine(self, room_id: str, reason: str) -> None:
        """Fail a room at the engine's wish; one that is over stays as it is. Raises ``RoomRefused`` for an unknown one."""
        room = self.state.rooms.live(room_id)
        if room is not None:
            self.fail_room(room, "aborted", reason)
        elif self.state.rooms.result(room_id) is None:
            raise RoomRefused("unknown_room", f"room {room_id!r} is not known on this rank")

    def result(self, room_id: str) -> RoomDone | RoomFailed | None:
        """How a room ended; ``None`` while it is live. Raises ``UnknownRoomError``."""
        result = self.state.rooms.result(room_id)
        if result is None and self.state.rooms.live(room_id) is None:
            raise UnknownRoomError(room_id)
        return result

    # ---- aborts of D's --------------------------------------------------------------------------------------------------

    def abort_received(self, peer: Peer, message: Abort) -> None:
        """D has given the room up: so do we, and we say so once none of our writes into it runs."""
        if not peer.knows(message.session):
            self.state.counters["aborts_of_unknown_session"] += 1
            return
        is_current = peer.session is not None and peer.session.id == message.session
        room = self.state.rooms.live(message.room)
        target = room.targets.get(peer.endpoint) if room is not None else None
        if room is None or target is None:
            if is_current and self.state.rooms.result(message.room) is None:
                self._remember_aborted(peer.session, message)
            self._acknowledge(peer.endpoint, message.room, message.session, message.abort_id)
            return
        target.acks_owed[message.session, message.abort_id] = None
        if is_current and room.failure is None:
            self.fail_room(room, "aborted_by_decode", f"{peer.endpoint}: {message.reason}", spared=peer.endpoint)
        else:
            self._settle_target(room, target)

    def _remember_aborted(self, session: Session | None, message: Abort) -> None:
        assert session is not None
        settings, known = self.state.settings, session.aborted_rooms
        known[message.room] = (message.reason, self.state.now + settings.room_tombstone_s)
        known.move_to_end(message.room)
        while len(known) > settings.max_aborted_rooms:
            known.popitem(last=False)

    def _settle_target(self, room: Room, target: Target) -> None:
        running = set(target.running.values())
        for session, abort_id in [owed for owed in target.acks_owed if owed[0] not in running]:
            del target.acks_owed[session, abort_id]
            self._acknowledge(target.peer, room.id, session, abort_id)
        if target.abort_due and not running:
            target.abort_due = False
            self._start_abort(target.peer, room)

    def _acknowledge(self, endpoint: str, room_id: str, session: str, abort_id: int) -> None:
        if not self._confess(endpoint, session, room_id):
            self.state.counters["aborts_acknowledged"] += 1
            self.state.send(endpoint, AbortAck(session, room_id, abort_id))

    def _confess(self, endpoint: str, session: str, room_id: str) -> bool:
        """Name the grants in which failed writes of ours may still land, where a promise was due. False if there are none."""
        peer = self.state.peers.get(endpoint)
        failed = peer.unproven.get((session, room_id)) if peer is not None else None
        for message in (failed or {}).values():
            self.state.counters["promises_withheld"] += 1
            self.state.send(endpoint, message)
        return bool(failed)

    # ---- aborts of ours -------------------------------------------------------------------------------------------------

    def abort_acknowledged(self, peer: Peer, message: AbortAck) -> None:
        """D has heard it: stop repeating, if it means the abort that we repeat."""
        pending = peer.aborts.get(message.room)
        if pending is None or pending.abort_id != message.abort_id or not peer.knows(message.session):
            self.state.counters["abort_acks_ignored"] += 1
            return
        self._end_abort(peer, message.room)

    def retry_abort(self, endpoint: str, room_id: str) -> None:
        """No ack came in time: say it again, as long as the room is remembered at all."""
        peer = self.state.peers.get(endpoint)
        if peer is None or room_id not in peer.aborts:
            return
        if self.state.rooms.live(room_id) is None and self.state.rooms.result(room_id) is None:
            self.state.counters["aborts_given_up"] += 1
            self._end_abort(peer, room_id)
        else:
            self._send_abort(peer, room_id, peer.aborts[room_id])

    def resume_aborts(self, peer: Peer) -> None:
        """A new session with the same decode process: say there what the former one may not have heard."""
        for room_id, pending in peer.aborts.items():
            pending.backoff.reset()
            self._send_abort(peer, room_id, pending)

    def forget_peer(self, peer: Peer) -> None:
        """This peer is gone: nobody is left to hear our aborts."""
        for room_id in tuple(peer.aborts):
            self._end_abort(peer, room_id)

    def _start_abort(self, endpoint: str, room: Room) -> None:
        assert room.failure is not None
        peer = self.state.peers.get(endpoint)
        if peer is None:
            return
        reason = f"{room.failure.code}: {room.failure.message}"[: MAX_TEXT_BYTES // 4]
        pending = PendingAbort(self._next_abort_id, reason, self.state.backoff(self.state.settings.abort_retry_s))
        self._next_abort_id += 1
        peer.aborts[room.id] = pending
        self._send_abort(peer, room.id, pending)

    def _send_abort(self, peer: Peer, room_id: str, pending: PendingAbort) -> None:
        if peer.session is not None and not self._confess(peer.endpoint, peer.session.id, room_id):
            self.state.send(peer.endpoint, Abort(peer.session.id, room_id, pending.abort_id, pending.reason))
        self.state.retry(TimerKey(TimerKind.ABORT, peer.endpoint, room_id), pending.backoff)

    def _end_abort(self, peer: Peer, room_id: str) -> None:
        del peer.aborts[room_id]
        self.state.timers.cancel(TimerKey(TimerKind.ABORT, peer.endpoint, room_id))

    # ---- the end --------------------------------------------------------------------------------------------------------

    def _bury(self, room: Room, result: RoomDone | RoomFailed) -> None:
        self.state.timers.cancel(TimerKey(TimerKind.ROOM, room=room.id))
        self.state.rooms.bury(room, result, self.state.now)
        self.state.emit(result)

    def _deadline(self, room: Room) -> float:
        settings = self.state.settings
        cap = room.submitted_at + settings.room_deadline_s * settings.room_deadline_cap
        return min(cap, room.progress_at + settings.room_deadline_s)

    def _what_it_waits_for(self, room: Room) -> str:
        chunk = next(room.open_chunks(), None)
        if chunk is None:
            return f"no more tokens came from the engine; {room.tokens} tokens were submitted"
        peer = self.state.peers.get(chunk.peer)
        way = peer.state.value if peer is not None else "gone"
        return f"chunk {chunk.index} for {chunk.peer} ({way}) is {chunk.state} for {self.state.now - chunk.since:.1f} s"
