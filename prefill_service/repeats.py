"""What P says about a chunk, and says again until it is answered: the request, the word that its bytes are there, the taint."""

from dataclasses import dataclass

from prefill_service.chunks import Chunk
from prefill_service.outputs import Channel
from prefill_service.sessions import Session
from prefill_service.state import PrefillState, TimerKey, TimerKind
from protocol.messages import ChunkReady, StagingReq, WriteFailed

BUSY_AT_ONCE = 64
"""Chunks of one session that were turned away as busy and repeat at the usual pace; a larger crowd shares that rate."""
MOST_PATIENCE = 4
"""How many of the longest intervals a busy chunk waits at most: another writer may hold a place for it already."""
BUNDLED_FROM_S, BUNDLE_S = 1.0, 0.1
"""Waits of so many seconds and more end on a multiple of the second number, up to that much earlier: the repeats of many chunks
then leave together, and wake both daemons a few times a second instead of once for each."""


@dataclass(slots=True, eq=False)
class Repeats:
    """Sends what a chunk's state calls for, and sets the time of its repetition."""

    state: PrefillState

    def ask(self, session: Session, chunk: Chunk) -> None:
        """Ask for a place, from the first retry interval on."""
        chunk.backoff = self.state.backoff(self.state.settings.request_retry_s)
        self.send_request(session, chunk)

    def send_request(self, session: Session, chunk: Chunk) -> None:
        """``STAGING_REQ``, again if it is not answered."""
        span = (chunk.index, chunk.token_start, chunk.num_tokens)
        self.state.send(session.peer, StagingReq(session.id, chunk.room, *span, self._traceparent(chunk)))
        self._retry(chunk)

    def take_turns(self, session: Session, chunk: Chunk) -> None:
        """A chunk was turned away as busy: the more there are of them, the later it asks again by itself.

        Repeats of the others say just as well when there is a place, and with each place that becomes free one of them asks.
        """
        crowd = min(len(session.busy) / BUSY_AT_ONCE, MOST_PATIENCE)
        if crowd > 1:
            wait_s = crowd * chunk.backoff.limit_s * (1.0 - 0.2 * self.state.random.random())
            self._repeat_in(chunk, wait_s)

    def announce(self, session: Session, chunk: Chunk) -> None:
        """Say that the bytes are visible, from the first retry interval on."""
        chunk.backoff = self.state.backoff(self.state.settings.ready_retry_s)
        self.send_ready(session, chunk)

    def send_ready(self, session: Session, chunk: Chunk) -> None:
        """``CHUNK_READY`` behind the payload where it has a pipe of its own, again if there is no verdict."""
        assert chunk.grant is not None
        ready = ChunkReady(
            session=session.id,
            room=chunk.room,
            chunk=chunk.index,
            alloc_id=chunk.grant.alloc_id,
            attempt=chunk.attempt,
            num_bytes=chunk.grant.writer_bytes,
            checksum=chunk.checksum,
            traceparent=self._traceparent(chunk),
        )
        follows_data = session.terms.plane in self.state.settings.data_channel_planes
        self.state.send(session.peer, ready, Channel.DATA if follows_data else Channel.CONTROL)
        self._retry(chunk)

    def send_taint(self, session: Session, chunk: Chunk) -> None:
        """``WRITE_FAILED`` and ``STAGING_REQ``, until a newer grant shows that D knows.

        An answer to an older request may still be on its way, so no other answer ends this.
        """
        assert chunk.taint is not None
        taint = chunk.taint
        failed = WriteFailed(session.id, chunk.room, chunk.index, taint.alloc_id, taint.attempt, taint.reason)
        self.state.send(session.peer, failed)
        self.send_request(session, chunk)

    def _traceparent(self, chunk: Chunk) -> str | None:
        room = self.state.rooms.live(chunk.room)
        return room.traceparent if room is not None else None

    def _retry(self, chunk: Chunk) -> None:
        self._repeat_in(chunk, chunk.backoff.next_interval(self.state.random))

    def _repeat_in(self, chunk: Chunk, wait_s: float) -> None:
        at = self.state.now + wait_s
        if wait_s >= BUNDLED_FROM_S:
            at -= at % BUNDLE_S
        self.state.timers.set(TimerKey(TimerKind.CHUNK, chunk.peer, chunk.room, chunk.index), at)
