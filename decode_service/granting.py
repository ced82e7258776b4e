"""``STAGING_REQ``: who may have a place in the ring, and when.

A grant is *late*: it is assigned when the last expected writer has asked, and a writer asks only once its bytes exist. So the
oldest grant never waits for a computation or for somebody who has not shown up, and the ring holds only what is being moved.

A request is idempotent by (room, chunk, writer): any number of repeats, one grant.
"""

from dataclasses import dataclass

from decode_service.allocator import Oversized
from decode_service.closing import Closing
from decode_service.grants import Grant, GrantState, lay_out
from decode_service.rooms import Chunk, Room
from decode_service.sessions import Session
from decode_service.state import DecodeState, TimerKey, TimerKind
from protocol.messages import GrantStatus, StagingReq, StagingRsp


@dataclass(slots=True, eq=False)
class Granting:
    """Answers staging requests, parks those that came before their room, and assigns regions."""

    state: DecodeState
    closing: Closing

    def request(self, session: Session, message: StagingReq) -> None:
        """Answer one request, or park it if the engine may still register its room."""
        room = self.state.rooms.live(message.room)
        if room is not None:
            self._request_in(room, session, message)
        elif (end := self.state.rooms.over(message.room)) is not None:
            self._answer(session, message, GrantStatus.DONE if end.done else GrantStatus.ABORTED, message=end.message)
        else:
            self._park(session, message)

    def room_registered(self, room: Room) -> None:
        """Answer the requests that waited for this room."""
        for session_id, chunk in self.state.parking.waiting_for(room.id):
            session = self.state.sessions.current(session_id)
            message = self.state.parking.take(session_id, room.id, chunk)
            self.state.timers.cancel(TimerKey(TimerKind.PARK, session_id, room.id, chunk))
            if session is not None and message is not None:
                self._request_in(room, session, message)

    def park_expired(self, session_id: str, room_id: str, chunk: int) -> None:
        """Nobody registered the room in time: its prefill must hear that."""
        session = self.state.sessions.current(session_id)
        message = self.state.parking.take(session_id, room_id, chunk)
        if session is not None and message is not None:
            self.state.counters["requests_unknown_room"] += 1
            text = f"no engine registered room {room_id!r} within {self.state.settings.park_s:g} s"
            self._answer(session, message, GrantStatus.UNKNOWN_ROOM, message=text)

    def _request_in(self, room: Room, session: Session, message: StagingReq) -> None:
        if room.end is not None:
            self._answer(session, message, GrantStatus.ABORTED, message=room.end.message)
        elif problem := self._problem(room, session, message):
            self.state.counters["requests_invalid"] += 1
            self._answer(session, message, GrantStatus.INVALID, message=problem)
        elif room.scattered[message.chunk]:
            self._answer(session, message, GrantStatus.DONE)
        else:
            self._join(room, session, message)

    def _problem(self, room: Room, session: Session, message: StagingReq) -> str:
        if session.group != room.group:
            return f"group: this room is registered for {room.group!r}, the request came from {session.group!r}"
        if not room.writers:
            room.writers = session.writers
        if not room.is_writer(session.writer) or room.writers != session.writers:
            return f"writer: {session.writer} has no slice in this room on this decode rank"
        try:
            expected = room.tokens_of(message.chunk)
        except IndexError:
            return f"chunk: expected 0 to {len(room.scattered) - 1} for {room.num_tokens} tokens, got {message.chunk}"
        if (message.token_start, message.num_tokens) != expected:
            return f"token_start, num_tokens: expected {expected}, got {(message.token_start, message.num_tokens)}"
        known = room.lives.setdefault(session.writer, session.incarnation)
        return "" if known == session.incarnation else "incarnation: another life of this writer began the room"

    def _join(self, room: Room, session: Session, message: StagingReq) -> None:
        chunk = room.chunks.get(message.chunk)
        if chunk is None:
            if self._is_full(session):
                self._answer(session, message, GrantStatus.BUSY, message=self._full_text(session))
                return
            chunk = Chunk(message.chunk, message.token_start, message.num_tokens, since=self.state.now)
            room.chunks[message.chunk] = chunk
        session.open_chunks.add((room.id, chunk.index))
        room.traceparent = room.traceparent or message.traceparent
        self._start_clock(room)
        if chunk.grant is not None:
            self._answer_from_grant(session, message, chunk.grant)
            return
        chunk.asked[session.writer] = session.id
        if len(chunk.asked) < len(room.writers):
            self._answer(session, message, GrantStatus.PENDING)
            return
        self.state.turns.add(room, chunk)
        room.set_clock(self.state.run_time)
        self.take_turns()
        if room.end is None and room.chunks[chunk.index].grant is None:
            self._answer(session, message, GrantStatus.PENDING, message="other chunks go first")

    def take_turns(self) -> None:
        """Grant whatever the horizon and the shares allow, in the order of turns."""
        grants, turns = self.state.grants, self.state.turns
        if not len(turns):
            return
        horizon = self.state.settings.grant_horizon * grants.allocator.total_size
        share = self.state.settings.group_share * horizon

        def may_hold_more(group: str) -> bool:
            return grants.live_bytes_of[group] < share or not turns.others_wait(group)

        while len(turns) and grants.live_bytes < horizon and not self.state.replacing:
            turn = turns.next(may_hold_more)
            if turn is None:
                return
            self._grant(*turn)

    def _answer_from_grant(self, session: Session, message: StagingReq, grant: Grant) -> None:
        slot = grant.slots[session.writer]
        if grant.state is GrantState.CLOSED:
            self._answer(session, message, GrantStatus.BUSY, message=f"its last grant is closed: {grant.closed_reason}")
        elif slot.quiet or slot.session != session.id:
            self._answer(session, message, GrantStatus.PENDING, message="the bytes are here and wait for the other writers")
        else:
            self._answer(session, message, GrantStatus.GRANTED, grant)

    def _grant(self, room: Room, chunk: Chunk) -> None:
        slots = lay_out(room.writers, chunk.asked, chunk.num_tokens)
        grant = self.state.grants.open(room, chunk.index, slots, self.state.now)
        if isinstance(grant, Oversized):
            self._refuse_oversized(room, chunk, grant)
            return
        chunk.grant = grant
        room.granted += 1
        self.state.counters["grants"] += 1
        self.state.watermark_moved()
        room.set_clock(self.state.run_time)
        for slot in slots.values():
            session = self.state.sessions.current(slot.session)
            assert session is not None, "a fenced session's requests are dropped with it"
            session.unwritten[grant.alloc_id] = grant
            self.state.fanout.set_waiting(session.id, True)
            self._respond(session, room.id, chunk.index, GrantStatus.GRANTED, grant)
        chunk.asked.clear()

    def _refuse_oversized(self, room: Room, chunk: Chunk, refusal: Oversized) -> None:
        self.state.counters["requests_oversized"] += 1
        text = (
            f"chunk {chunk.index} needs {refusal.requested_bytes} bytes and the ring has {refusal.total_bytes}: "
            "make the ring larger or the chunks smaller"
        )
        for session_id in chunk.asked.values():
            session = self.state.sessions.current(session_id)
            assert session is not None
            self._respond(session, room.id, chunk.index, GrantStatus.OVERSIZED, message=text)
        self.closing.fail_room(room, "oversized", text)

    def _start_clock(self, room: Room) -> None:
        if not room.started:
            room.started = True
            room.set_clock(self.state.run_time)
            key = TimerKey(TimerKind.ROOM, room=room.id)
            cap = room.registered_at + room.deadline_s * self.state.settings.room_deadline_cap
            self.state.timers.set(key, min(cap, self.state.now + room.deadline_s))

    def _is_full(self, session: Session) -> bool:
        return (
            self.state.draining or self.state.replacing or len(session.open_chunks) >= self.state.settings.max_chunks_in_flight
        )

    def _full_text(self, session: Session) -> str:
        if self.state.draining:
            return "this decode rank is draining"
        if self.state.replacing:
            return "its staging region is being replaced"
        return f"{len(session.open_chunks)} chunks in flight, limit {self.state.settings.max_chunks_in_flight}"

    def _park(self, session: Session, message: StagingReq) -> None:
        if self.state.parking.has(session.id, message):
            return
        if not self.state.parking.park(session.id, message):
            self._answer(session, message, GrantStatus.BUSY, message="too many requests wait for rooms nobody registered")
            return
        timer = TimerKey(TimerKind.PARK, session.id, message.room, message.chunk)
        self.state.timers.set(timer, self.state.now + self.state.settings.park_s)

    def _answer(
        self, session: Session, request: StagingReq, status: GrantStatus, grant: Grant | None = None, message: str = ""
    ) -> None:
        self._respond(session, request.room, request.chunk, status, grant, message)

    def _respond(
        self, session: Session, room: str, chunk: int, status: GrantStatus, grant: Grant | None = None, message: str = ""
    ) -> None:
        self.state.counters[f"answers_{status.value}"] += 1
        watermark = self.state.grants.allocator.get_watermark()
        part = grant.slice_of(session.writer) if grant is not None else None
        self.state.send(session, StagingRsp(session.id, room, chunk, status, watermark, part, message[:512]))
