"""A chunk's way in a session: ask, be granted, pass the gate, write, say so, hear the verdict.

Everything P says here is repeated until it is answered, and everything D says may come late, twice or never. So each answer is
first compared with what the chunk now holds (its grant's ``alloc_id`` and ``attempt``), and counted and dropped if it is about
something else. No first request is ever withheld: bounding them is D's business. Of those that D had no place for, a crowd
takes turns.
"""

from dataclasses import dataclass

from prefill_service.chunks import FIRST_ATTEMPT, Chunk, ChunkEvent, ChunkState, Taint
from prefill_service.closing import Closing
from prefill_service.heartbeats import Heartbeats
from prefill_service.repeats import Repeats
from prefill_service.rooms import Room, Target
from prefill_service.sessions import Peer, Session
from prefill_service.state import PrefillState, TimerKey, TimerKind
from prefill_service.writes import Write
from protocol.messages import ChunkDone, DoneStatus, GrantSlice, GrantStatus, StagingRsp, WriteFailed
from protocol.watermark import Watermark

_ROOM_CODES = {
    GrantStatus.OVERSIZED: "oversized",
    GrantStatus.INVALID: "invalid",
    GrantStatus.UNKNOWN_ROOM: "unknown_room",
    GrantStatus.ABORTED: "aborted_by_decode",
}
"""What a room's failure is called when D refuses one of its chunks."""


@dataclass(slots=True, eq=False)
class Transfers:
    """Moves chunks through their states."""

    state: PrefillState
    closing: Closing
    heartbeats: Heartbeats
    repeats: Repeats

    # ---- asking ---------------------------------------------------------------------------------------------------------

    def offer(self, room: Room) -> None:
        """Put every chunk whose tokens exist on its way to every target."""
        for target in room.targets.values():
            session = self.state.session_of(target.peer)
            if session is not None:
                target.owes_nothing = session.share.token_bytes == 0
            created = self._create(room, target)
            if session is not None:
                self._ask_first(session, target, created)
        self.closing.settle(room)

    def resume(self, session: Session) -> None:
        """A session has become current: ask for everything that waited for one."""
        for room in self.state.rooms.of_peer(session.peer):
            if room.failure is None:
                target = room.targets[session.peer]
                target.owes_nothing = session.share.token_bytes == 0
                self._create(room, target)
                self._ask_first(session, target, list(target.open.values()))
                self.closing.settle(room)

    def session_lost(self, session: Session) -> None:
        """Return every chunk to its source pages: what the session granted and knew has died with it."""
        for room in self.state.rooms.of_peer(session.peer):
            for chunk in room.targets[session.peer].open.values():
                self.closing.withdraw(chunk)
                chunk.grant, chunk.spent_alloc, chunk.last_answer = None, -1, None
                chunk.apply(ChunkEvent.SESSION_LOST, self.state.now)

    def abandoned(self, write: Write) -> None:
        """Nobody knows whether this write of a dead session still lands: its grant must never be written again."""
        self.state.writes.abandon(write)
        taint = Taint(write.session.terms.epoch, write.alloc_id, write.attempt, "a write of a lost session did not end")
        write.chunk.taint = taint

    def _create(self, room: Room, target: Target) -> list[Chunk]:
        settings = self.state.settings
        if target.owes_nothing:
            for chunk in target.open.values():
                chunk.apply(ChunkEvent.NOT_NEEDED, self.state.now)
            target.open.clear()
            target.created = 0
            return []
        created = []
        while target.created < room.offered:
            start = target.created * settings.chunk_tokens
            size = min(settings.chunk_tokens, room.tokens - start)
            backoff = self.state.backoff(settings.request_retry_s)
            chunk = Chunk(room.id, target.peer, target.created, start, size, backoff, self.state.now)
            target.open[chunk.index] = chunk
            target.created += 1
            created.append(chunk)
        return created

    def _ask_first(self, session: Session, target: Target, chunks: list[Chunk]) -> None:
        for chunk in chunks:
            target.known = True
            chunk.apply(ChunkEvent.ASKED, self.state.now)
            self.repeats.ask(session, chunk)

    # ---- what D answers -------------------------------------------------------------------------------------------------

    def watermark_heard(self, session: Session, watermark: Watermark) -> None:
        """Let pass what this watermark lets pass."""
        if watermark <= session.gate.watermark:
            self.state.counters["watermarks_not_larger"] += 1
            return
        for chunk in session.gate.advance(watermark):
            self.state.writes.add(chunk)
        self.heartbeats.advanced(session)

    def answered(self, peer: Peer, session: Session, message: StagingRsp) -> None:
        """D's answer to a request."""
        self.watermark_heard(session, message.watermark)
        room, chunk = self._find(peer, message.room, message.chunk)
        if room is None or chunk is None:
            return
        chunk.last_answer = message.status
        was_busy = chunk in session.busy
        if was_busy:
            self.repeats.turned_away_no_more(session, chunk)
        if message.status is GrantStatus.GRANTED and message.grant is not None:
            self._granted(session, room, chunk, message.grant)
        elif message.status is GrantStatus.DONE:
            self._scattered(session, room, chunk)
        elif message.status in _ROOM_CODES:
            self.closing.fail_room(room, _ROOM_CODES[message.status], f"{peer.endpoint}: {message.message}")
        elif message.status is GrantStatus.BUSY and chunk.state is ChunkState.REQUESTED:
            self.repeats.turned_away(session, chunk)
        if was_busy and message.status is not GrantStatus.BUSY:
            # There was a place for one that had been turned away; there may be one for the next.
            self._ask_a_busy_one(session)

    def judged(self, peer: Peer, session: Session, message: ChunkDone) -> None:
        """D's verdict on what was written."""
        room, chunk = self._find(peer, message.room, message.chunk)
        if room is None or chunk is None:
            return
        is_ours = chunk.is_current(message.alloc_id)
        if message.status is DoneStatus.SCATTERED:
            self._scattered(session, room, chunk)
        elif message.status is DoneStatus.REJECTED and is_ours and self._awaits_verdict(chunk, message.attempt):
            self._rejected(session, chunk)
        elif message.status is DoneStatus.STALE and is_ours and chunk.state in {ChunkState.WRITTEN, ChunkState.GRANTED}:
            self._ask_anew(session, chunk)
        else:
            self.state.counters[f"verdicts_ignored_{message.status.value}"] += 1

    def _find(self, peer: Peer, room_id: str, index: int) -> tuple[Room, Chunk] | tuple[None, None]:
        room = self.state.rooms.live(room_id)
        target = room.targets.get(peer.endpoint) if room is not None else None
        if room is None or target is None:
            self.state.counters["answers_for_unknown_room"] += 1
            return None, None
        target.answered = True
        chunk = target.open.get(index)
        if chunk is None or chunk.state is ChunkState.COMPUTED:
            self.state.counters["answers_for_closed_chunk"] += 1
            return None, None
        return room, chunk

    def _granted(self, session: Session, room: Room, chunk: Chunk, grant: GrantSlice) -> None:
        held = chunk.grant.alloc_id if chunk.grant is not None else chunk.spent_alloc
        if chunk.state in {ChunkState.WRITING, ChunkState.WRITTEN} or grant.alloc_id <= max(held, chunk.spent_alloc):
            self.state.counters["grants_repeated"] += 1
            return
        problem = session.share.problem(grant, chunk.num_tokens, session.terms.ring_size)
        if problem is not None:
            self.closing.fail_room(room, "bad_grant", f"{session.peer}: grant of chunk {chunk.index}: {problem}")
            return
        room.progress_at = self.state.now
        if chunk.taint is not None and chunk.taint[:2] == (session.terms.epoch, grant.alloc_id):
            self._taint(session, chunk, chunk.taint._replace(attempt=FIRST_ATTEMPT))
            return
        self.closing.withdraw(chunk)
        chunk.apply(ChunkEvent.GRANTED, self.state.now)
        chunk.grant, chunk.attempt, chunk.checksum = grant, FIRST_ATTEMPT, None
        self._to_gate(session, chunk)

    def _to_gate(self, session: Session, chunk: Chunk) -> None:
        assert chunk.grant is not None
        if session.gate.admit(chunk, chunk.grant.round, chunk.grant.end):
            self.state.writes.add(chunk)
        else:
            self.state.counters["grants_gated"] += 1
            self.heartbeats.blocked(session)

    def _scattered(self, session: Session, room: Room, chunk: Chunk) -> None:
        self.closing.withdraw(chunk)
        chunk.apply(ChunkEvent.SCATTERED, self.state.now)
        del room.targets[chunk.peer].open[chunk.index]
        room.progress_at = self.state.progress_at = self.state.now
        self._ask_a_busy_one(session)
        self.closing.settle(room)

    def _ask_a_busy_one(self, session: Session) -> None:
        """A place has become free at D: the chunk that was turned away first asks for it now rather than at its next retry."""
        while session.busy:
            chunk = next(iter(session.busy))
            del session.busy[chunk]
            room = self.state.rooms.live(chunk.room)
            if room is not None and chunk.state is ChunkState.REQUESTED:
                self.repeats.ask(session, chunk)
                return

    def _awaits_verdict(self, chunk: Chunk, attempt: int) -> bool:
        return chunk.state is ChunkState.WRITTEN and chunk.attempt == attempt

    def _rejected(self, session: Session, chunk: Chunk) -> None:
        self.state.counters["writes_rejected"] += 1
        self.closing.withdraw(chunk)
        chunk.apply(ChunkEvent.REJECTED, self.state.now)
        chunk.attempt += 1
        self._to_gate(session, chunk)

    def _ask_anew(self, session: Session, chunk: Chunk) -> None:
        assert chunk.grant is not None
        self.closing.withdraw(chunk)
        chunk.spent_alloc, chunk.grant = chunk.grant.alloc_id, None
        chunk.apply(ChunkEvent.STALE, self.state.now)
        self.repeats.ask(session, chunk)

    # ---- writing --------------------------------------------------------------------------------------------------------

    def write_finished(self, write: Write, checksum: int | None) -> None:
        """The bytes are visible to D: tell it, if the chunk still means this write."""
        chunk, room = write.chunk, write.room
        if chunk.write_id != write.id:
            self.state.counters["writes_outlived"] += 1
            return
        chunk.apply(ChunkEvent.FINISHED, self.state.now)
        chunk.write_id, chunk.checksum, chunk.write_failures = None, checksum, 0
        room.progress_at = self.state.progress_at = self.state.now
        self.repeats.announce(write.session, chunk)

    def write_failed(self, write: Write, reason: str) -> None:
        """Try again with the same grant, or taint it where the bytes may still land."""
        chunk, room = write.chunk, write.room
        self.state.counters["writes_failed"] += 1
        if write.session.terms.plane in self.state.settings.one_sided_planes:
            self._note_unproven(write, reason)
        if chunk.write_id != write.id:
            self.state.counters["writes_outlived"] += 1
            return
        chunk.write_id = None
        chunk.write_failures += 1
        session = write.session
        if chunk.write_failures >= self.state.settings.max_write_failures:
            text = f"{session.peer}: chunk {chunk.index} failed {chunk.write_failures} times, lastly: {reason}"
            self.closing.fail_room(room, "write_failed", text)
        elif session.terms.plane in self.state.settings.one_sided_planes:
            self._taint(session, chunk, Taint(session.terms.epoch, write.alloc_id, write.attempt, reason))
        else:
            chunk.apply(ChunkEvent.FAILED, self.state.now)
            key = TimerKey(TimerKind.CHUNK, chunk.peer, chunk.room, chunk.index)
            self.state.timers.set(key, self.state.now + self.state.settings.write_retry_s)

    def _note_unproven(self, write: Write, reason: str) -> None:
        """Whatever becomes of the chunk and of its room: these bytes may land at any time, and no word of ours may deny it."""
        session, chunk = write.session, write.chunk
        failed = WriteFailed(session.id, write.room.id, chunk.index, write.alloc_id, write.attempt, reason)
        peer = self.state.peers.get(session.peer)
        if peer is not None:
            peer.note_unproven(failed)
        if chunk.write_id != write.id and chunk.grant is None:
            chunk.taint = Taint(session.terms.epoch, write.alloc_id, write.attempt, reason)

    def _taint(self, session: Session, chunk: Chunk, taint: Taint) -> None:
        self.state.counters["grants_tainted"] += 1
        self.closing.withdraw(chunk)
        if chunk.state is not ChunkState.TAINTED:
            chunk.apply(ChunkEvent.TAINTED, self.state.now)
        chunk.taint, chunk.grant, chunk.spent_alloc = taint, None, taint.alloc_id
        chunk.backoff = self.state.backoff(self.state.settings.ready_retry_s)
        self.repeats.send_taint(session, chunk)

    # ---- time -----------------------------------------------------------------------------------------------------------

    def turn_due(self, session: Session) -> None:
        """It is the turn of some that D had no place for."""
        self.repeats.turn_due(session)

    def chunk_due(self, endpoint: str, room_id: str, index: int) -> None:
        """No answer came in time, or the wait after a failed write is over."""
        session, room = self.state.session_of(endpoint), self.state.rooms.live(room_id)
        chunk = room.targets[endpoint].open.get(index) if room is not None else None
        if session is None or room is None or chunk is None:
            return
        if chunk.state is ChunkState.REQUESTED:
            self.state.counters["requests_repeated"] += 1
            self.repeats.send_request(session, chunk)
        elif chunk.state is ChunkState.WRITTEN:
            self.state.counters["readies_repeated"] += 1
            self.repeats.send_ready(session, chunk)
        elif chunk.state is ChunkState.TAINTED:
            self.repeats.send_taint(session, chunk)
        else:
            assert chunk.state is ChunkState.GRANTED
            self._to_gate(session, chunk)
