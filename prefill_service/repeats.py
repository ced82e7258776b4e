"""What P says about a chunk, and says again until it is answered: the request, the word that its bytes are there, the taint."""

import math
from dataclasses import dataclass
from itertools import islice

from prefill_service.chunks import Chunk
from prefill_service.outputs import Channel
from prefill_service.sessions import Session
from prefill_service.state import PrefillState, TimerKey, TimerKind
from protocol.messages import ChunkReady, StagingReq, WriteFailed

MOST_PATIENCE = 4
"""Of the longest intervals, after which everybody in a crowd has had a turn if there are other writers."""
BUNDLED_FROM_S, BUNDLE_S = 1.0, 0.25
"""Waits of so many seconds and more end on a multiple of the second number, up to that much earlier: the repeats of many chunks
then leave together, and wake both daemons a few times a second instead of once for each. Turns come at these moments, too."""


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
        self._set_retry(chunk)

    def turned_away(self, session: Session, chunk: Chunk) -> None:
        """A chunk was turned away as busy: behind a crowd of others it asks when its turn comes, not by itself.

        Those whose turn it is say just as well when there is a place, and with each place that becomes free one of them asks.
        """
        session.busy[chunk] = None
        if len(session.busy) > self.state.settings.max_busy_at_once or _turn(session) in self.state.timers:
            self.state.timers.cancel(_retry(chunk))
            self._set_turn(session)

    def turned_away_no_more(self, session: Session, chunk: Chunk) -> None:
        """Another answer came for it: it repeats by itself again, since an old answer may change nothing else."""
        del session.busy[chunk]
        if _retry(chunk) not in self.state.timers:
            self._set_retry(chunk)

    def turn_due(self, session: Session) -> None:
        """Those turned away longest ago ask once more, at a rate for the whole crowd; they go to the end."""
        number = math.ceil(self._share(session) * BUNDLE_S / self.state.settings.retry_limit_s)
        for chunk in list(islice(session.busy, number)):
            session.busy[chunk] = session.busy.pop(chunk)
            self.state.counters["requests_repeated"] += 1
            self.send_request(session, chunk)
        if session.busy:
            self._set_turn(session)

    def _share(self, session: Session) -> float:
        """How many of the crowd ask within the longest interval."""
        crowd = len(session.busy)
        few = min(crowd, self.state.settings.max_busy_at_once)
        # Other writers of the same chunks may hold places that wait for ours: then nobody waits for a turn for long.
        return few / 2 if session.share.is_alone else max(few, crowd / MOST_PATIENCE)

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
        self._set_retry(chunk)

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

    def _set_retry(self, chunk: Chunk) -> None:
        wait_s = chunk.backoff.next_interval(self.state.random)
        at = self.state.now + wait_s
        self.state.timers.set(_retry(chunk), _bundled(at) if wait_s >= BUNDLED_FROM_S else at)

    def _set_turn(self, session: Session) -> None:
        if _turn(session) not in self.state.timers:
            self.state.timers.set(_turn(session), _bundled(self.state.now + BUNDLE_S))


def _retry(chunk: Chunk) -> TimerKey:
    return TimerKey(TimerKind.CHUNK, chunk.peer, chunk.room, chunk.index)


def _turn(session: Session) -> TimerKey:
    return TimerKey(TimerKind.TURN, session.peer)


def _bundled(at: float) -> float:
    return at - at % BUNDLE_S
