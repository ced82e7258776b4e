"""From a writer's word to a consumed grant: ``CHUNK_READY``, verification and scatter, ``CHUNK_DONE``.

``CHUNK_READY(alloc_id, attempt)`` is a writer's word that it will not write this grant again; only our ``rejected`` for that
same attempt takes it back. So an attempt that was accepted is never rejected later, lower attempts are answered from the
record, and a chunk is scattered once, after all its distinct writers, from verified bytes.
"""

from dataclasses import dataclass

from decode_service.closing import Closing
from decode_service.grants import Grant, GrantState, WriterSlot
from decode_service.history import GrantOutcome
from decode_service.outputs import ReadySlice, ScatterChunk
from decode_service.pieces import Pieces
from decode_service.sessions import Session
from decode_service.state import DecodeState
from protocol.layout import WriterKey
from protocol.messages import ChunkDone, ChunkReady, DataPiece, DoneStatus, WriteFailed

CODE_CHECKSUM = "checksum"
CODE_CHECKSUM_ABSENT = "checksum_absent"
CODE_SIZE = "size"
CODE_MISSING_BYTES = "missing_bytes"


@dataclass(slots=True, eq=False)
class Completing:
    """Takes words from writers until a grant is consumed."""

    state: DecodeState
    closing: Closing
    pieces: Pieces

    def piece_arrived(self, session: Session, piece: DataPiece, payload_bytes: int) -> None:
        """Judge the header of a piece; nothing is copied unless it may be."""
        self.pieces.arrived(session, piece, payload_bytes)

    def piece_copied(self, copy_id: int) -> None:
        """A copy of ours into the ring has ended; the word that waited for it may be judged now."""
        grant, slot = self.pieces.copied(copy_id)
        if slot.copies == 0 and (claimed := slot.claimed) is not None and grant.retired_epoch is None:
            slot.claimed = None
            self._judge(grant, slot, claimed)
        self.closing.copy_ended(grant.room)
        self.closing.try_release(grant)

    def chunk_ready(self, session: Session, message: ChunkReady) -> None:
        """Take a writer's word, or answer a repeat of it from the record."""
        grant = self.state.grants.get(message.alloc_id)
        slot = grant.slots.get(session.writer) if grant is not None else None
        if grant is None or slot is None or not self._concerns(grant, slot, session, message):
            self._answer_from_record(session, message)
        elif message.attempt <= slot.rejected:
            self._answer(session, message, DoneStatus.REJECTED, slot.rejected_code)
        elif slot.ready is not None or slot.claimed is not None:
            self._answer_repeat(session, grant, message)
        elif message.attempt > slot.rejected + 1:
            self.state.counters["ready_ignored_attempt"] += 1
        elif slot.copies:
            slot.claimed = message
        else:
            self._judge(grant, slot, message)

    def ready_from_fenced(self, session: Session, message: ChunkReady) -> None:
        """A fenced session's word about its current attempt is proof that it is quiet in that grant, and nothing more."""
        grant = self.state.grants.get(message.alloc_id)
        slot = grant.slots.get(session.writer) if grant is not None else None
        if grant is None or slot is None or not self._concerns(grant, slot, session, message):
            return
        # A rejected attempt may have been followed by another, which runs now: the old word is no longer true.
        if message.attempt == slot.rejected + 1 and not slot.quiet:
            self.closing.prove_grant_quiet(session, grant)

    def write_failed(self, session: Session, message: WriteFailed) -> None:
        """A one-sided write ended without completion. Its bytes may still land, so no proof will ever free that grant.

        The session that says so may be a later one of the same life than the one that wrote. A writer whose word was accepted
        has no write left that could fail, and on a two-sided plane it has none at all.
        """
        grant = self.state.grants.get(message.alloc_id)
        slot = grant.slots.get(session.writer) if grant is not None else None
        if grant is None or slot is None or (grant.room.id, grant.chunk) != (message.room, message.chunk):
            return
        if session.two_sided or slot.ready is not None or not self._same_life(slot, session):
            self.state.counters["writes_failed_ignored"] += 1
            return
        self.state.counters["writes_failed"] += 1
        self.closing.taint_grant(grant, f"a write of {session.request.prefill_id!r} failed: {message.reason}")

    def scatter_finished(self, alloc_id: int, bad_writers: tuple[WriterKey, ...]) -> None:
        """The worker has verified the slices, and if all were right the chunk is in its pages."""
        grant = self.state.running_grant(alloc_id)
        assert grant is not None
        assert grant.scatter_running
        grant.scatter_running = False
        if bad_writers:
            self._slices_bad(grant, bad_writers)
        else:
            self._consumed(grant)
        self.closing.copy_ended(grant.room)
        if grant.room.end is None and grant.room.remaining == 0:
            self.closing.finish_room(grant.room)

    def scatter_failed(self, alloc_id: int, message: str) -> None:
        """The worker could not do its job: our fault, not a writer's, so the room fails and the grant closes."""
        grant = self.state.running_grant(alloc_id)
        assert grant is not None
        assert grant.scatter_running
        grant.scatter_running = False
        grant.state = GrantState.OPEN
        self.closing.fail_room(grant.room, "scatter_failed", message)
        self.closing.close_grant(grant, "scatter failed")
        self.closing.copy_ended(grant.room)

    def _concerns(self, grant: Grant, slot: WriterSlot, session: Session, message: ChunkReady) -> bool:
        return slot.session == session.id and (grant.room.id, grant.chunk) == (message.room, message.chunk)

    def _same_life(self, slot: WriterSlot, session: Session) -> bool:
        wrote = self.state.sessions.get(slot.session)
        return wrote is not None and (wrote.request.prefill_id, wrote.incarnation) == (
            session.request.prefill_id,
            session.incarnation,
        )

    def _judge(self, grant: Grant, slot: WriterSlot, message: ChunkReady) -> None:
        session = self.state.sessions.get(slot.session)
        problem = self._ready_problem(slot, session, message)
        if problem and grant.state is GrantState.OPEN and session is not None and not session.fenced:
            self._reject_all(grant, {slot.layout.writer: message}, problem)
            return
        self._accept(grant, slot, message)
        if grant.state is GrantState.CLOSED:
            self._answer_slot(slot, message, DoneStatus.STALE)
            self.closing.try_release(grant)
        elif all(other.ready is not None for other in grant.slots.values()):
            self._scatter(grant)

    def _accept(self, grant: Grant, slot: WriterSlot, message: ChunkReady) -> None:
        """The writer's word stands: it will not write this grant again."""
        slot.ready = message
        session = self.state.sessions.get(slot.session)
        if session is not None:
            self.closing.no_longer_unwritten(session, grant)

    def _ready_problem(self, slot: WriterSlot, session: Session | None, message: ChunkReady) -> str:
        if message.num_bytes != slot.num_bytes:
            return CODE_SIZE
        if session is None:
            return ""
        if message.checksum is None and "xxh3" in session.answer.features:
            return CODE_CHECKSUM_ABSENT
        if session.two_sided and not self.pieces.all_arrived(session, slot):
            return CODE_MISSING_BYTES
        return ""

    def _scatter(self, grant: Grant) -> None:
        room = grant.room
        grant.state = GrantState.SCATTERING
        grant.scatter_running, grant.written_at = True, self.state.now
        room.copies += 1
        chunk = room.chunks[grant.chunk]
        slices = tuple(
            ReadySlice(slot.layout, grant.allocation.offset + slot.offset, slot.num_bytes, slot.ready.checksum)
            for slot in grant.slots.values()
            if slot.ready is not None
        )
        self.state.emit(
            ScatterChunk(grant.alloc_id, room.id, grant.chunk, chunk.token_start, chunk.num_tokens, room.destination, slices)
        )

    def _consumed(self, grant: Grant) -> None:
        room = grant.room
        self.closing.end_grant(grant, GrantOutcome.CONSUMED)
        self.state.counters["chunks_scattered"] += 1
        if room.chunks.pop(grant.chunk, None) is not None:
            room.mark_scattered(grant.chunk)
        for slot in grant.slots.values():
            session = self.state.sessions.of_writer(room.group, slot.layout.writer)
            if session is not None:
                session.open_chunks.discard((room.id, grant.chunk))
            if slot.ready is not None:
                self._answer_slot(slot, slot.ready, DoneStatus.SCATTERED)
        self.state.watermark_moved()
        room.set_clock(self.state.run_time)

    def _slices_bad(self, grant: Grant, bad_writers: tuple[WriterKey, ...]) -> None:
        grant.state = GrantState.OPEN
        ready = {writer: grant.slots[writer].ready for writer in bad_writers}
        words = {writer: word for writer, word in ready.items() if word is not None}
        assert len(words) == len(bad_writers)
        if grant.retired_epoch is not None:
            self.closing.try_release(grant)
        elif grant.room.end is not None or not self._may_write_again(grant, bad_writers):
            self.closing.close_grant(grant, "a slice is bad and nobody can write it again")
        else:
            self._reject_all(grant, words, CODE_CHECKSUM)

    def _may_write_again(self, grant: Grant, writers: tuple[WriterKey, ...]) -> bool:
        return all(self.state.sessions.current(grant.slots[writer].session) is not None for writer in writers)

    def _reject_all(self, grant: Grant, words: dict[WriterKey, ChunkReady], code: str) -> None:
        chunk = grant.room.chunks[grant.chunk]
        # Pieces that a broken connection lost are no sign of corruption: any number may heal, up to the room's deadline.
        chunk.rewrites += code != CODE_MISSING_BYTES
        if chunk.rewrites > self.state.settings.max_rewrites:
            for writer, word in words.items():
                self._accept(grant, grant.slots[writer], word)
            text = f"chunk {grant.chunk} was rejected {chunk.rewrites} times, last for {code!r}"
            self.closing.fail_room(grant.room, "corrupt", text)
            return
        for writer, word in words.items():
            self._reject(grant, grant.slots[writer], word, code)

    def _reject(self, grant: Grant, slot: WriterSlot, message: ChunkReady, code: str) -> None:
        session = self.state.sessions.current(slot.session)
        assert session is not None, "only a current session is asked to write again"
        self.state.counters[f"ready_rejected_{code}"] += 1
        slot.rejected, slot.rejected_code, slot.ready, slot.pieces = message.attempt, code, None, 0
        session.unwritten[grant.alloc_id] = grant
        self.state.fanout.set_waiting(session.id, True)
        self._answer(session, message, DoneStatus.REJECTED, code)

    def _answer_repeat(self, session: Session, grant: Grant, message: ChunkReady) -> None:
        if grant.state is GrantState.CLOSED:
            self._answer(session, message, DoneStatus.STALE)
        else:
            self.state.counters["ready_repeated"] += 1

    def _answer_from_record(self, session: Session, message: ChunkReady) -> None:
        room, end = self.state.rooms.live(message.room), self.state.rooms.over(message.room)
        scattered = room is not None and 0 <= message.chunk < len(room.scattered) and room.scattered[message.chunk]
        if scattered or (end is not None and end.done):
            self._answer(session, message, DoneStatus.SCATTERED)
        else:
            self._answer(session, message, DoneStatus.STALE)

    def _answer_slot(self, slot: WriterSlot, message: ChunkReady, status: DoneStatus) -> None:
        session = self.state.sessions.current(slot.session)
        if session is not None:
            self._answer(session, message, status)

    def _answer(self, session: Session, message: ChunkReady, status: DoneStatus, code: str = "") -> None:
        self.state.send(
            session,
            ChunkDone(session.id, message.room, message.chunk, message.alloc_id, message.attempt, status, code),
        )
