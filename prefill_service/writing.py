"""Starting writes: what is ready, first come first served, as long as everything that allows a write still holds.

A write starts only if the gate let its grant pass, the session is current and its lease valid, and the room has not failed. All
but the lease are given by a chunk being queued at all; the lease is asked here, at the last moment.
"""

from dataclasses import dataclass

from prefill_service.chunks import Chunk, ChunkEvent
from prefill_service.losing import Losing
from prefill_service.outputs import WriteChunk
from prefill_service.sessions import Session
from prefill_service.state import PrefillState


@dataclass(slots=True, eq=False)
class Writing:
    """Starts writes, a bounded number at a time for each decode rank."""

    state: PrefillState
    losing: Losing

    def start_ready(self) -> None:
        """Begin what is ready for each decode rank to which fewer writes run than the limit."""
        writes, limit = self.state.writes, self.state.settings.max_writes_in_flight
        while endpoint := next(writes.peers(limit), None):
            peer = self.state.peers[endpoint]
            if not self.losing.lose_if_lapsed(peer):
                self._start(writes.next(endpoint), peer.session)

    def _start(self, chunk: Chunk, session: Session | None) -> None:
        room = self.state.rooms.live(chunk.room)
        assert session is not None
        assert room is not None
        assert room.failure is None
        assert chunk.grant is not None
        assert session.gate.explain(chunk.grant.round, chunk.grant.end) is None
        chunk.apply(ChunkEvent.STARTED, self.state.now)
        room.progress_at = self.state.now
        write = self.state.writes.start(chunk, room, session)
        self.state.emit(
            WriteChunk(
                write_id=write.id,
                peer=session.peer,
                session=session.id,
                room=room.id,
                chunk=chunk.index,
                alloc_id=write.alloc_id,
                attempt=write.attempt,
                token_start=chunk.token_start,
                num_tokens=chunk.num_tokens,
                source=room.source,
                offset=chunk.grant.offset + chunk.grant.writer_offset,
                num_bytes=chunk.grant.writer_bytes,
            )
        )
