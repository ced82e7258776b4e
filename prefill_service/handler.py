"""One prefill rank as a pure machine: messages and events in, outputs out, time as an argument.

Laws: a verb never blocks, never raises for anything a peer did, and returns everything it wants done. ``now`` never falls
between two calls. Any single message may be lost, repeated, late or from a former life.

    submit_chunk, finish_room, abort_room --> |           | --> Send, Connect, Disconnect
    receive                               --> |  handler  | --> OpenPlane, ClosePlane
    plane_opened, plane_failed            --> |           | --> WriteChunk
    write_finished, write_failed          --> |           | --> RoomDone, RoomFailed
    tick(now) <-- next_deadline()

The parts: ``submitting`` (the engine's rooms), ``attempts``, ``subscribing`` and ``losing`` (sessions), ``heartbeats`` (leases
and probes), ``transfers``, ``repeats`` and ``writing`` (chunks), ``closing`` (every end of a room).
"""

from collections.abc import Sequence
from copy import copy
from random import Random
from typing import assert_never

from prefill_service.attempts import Attempts
from prefill_service.closing import Closing
from prefill_service.handler_settings import PrefillHandlerSettings
from prefill_service.heartbeats import Heartbeats
from prefill_service.inspection import Snapshot, snapshot
from prefill_service.losing import Losing
from prefill_service.outputs import Output, RoomDone, RoomFailed
from prefill_service.repeats import Repeats
from prefill_service.rooms import RoomRefused, RoomTable
from prefill_service.sessions import Peer
from prefill_service.state import PrefillState, TimerKey, TimerKind
from prefill_service.submitting import Submitting
from prefill_service.subscribing import Subscribing
from prefill_service.transfers import Transfers
from prefill_service.writes import Write
from prefill_service.writing import Writing
from protocol.codec import frame_name
from protocol.errors import LocalProtocolError
from protocol.layout import PageRun
from protocol.messages import (
    Abort,
    AbortAck,
    ChunkDone,
    Error,
    Goodbye,
    HeartbeatAck,
    Refused,
    StagingRsp,
    Subscribed,
    ToPrefill,
    WatermarkUpdate,
)


class PrefillStagingHandler:
    """The prefill side of the staging protocol for one life of one rank."""

    def __init__(self, settings: PrefillHandlerSettings, random: Random) -> None:
        self.settings = settings
        self.state = PrefillState(settings, random, RoomTable(settings.room_tombstone_s))
        self._heartbeats = Heartbeats(self.state)
        self._closing = Closing(self.state)
        self._transfers = Transfers(self.state, self._closing, self._heartbeats, Repeats(self.state))
        self._attempts = Attempts(self.state)
        self._losing = Losing(self.state, self._closing, self._transfers, self._heartbeats, self._attempts)
        self._subscribing = Subscribing(
            self.state, self._closing, self._transfers, self._heartbeats, self._attempts, self._losing
        )
        self._writing = Writing(self.state, self._losing)
        self._submitting = Submitting(self.state, self._closing, self._transfers, self._attempts)

    # ---- what the engine wants ------------------------------------------------------------------------------------------

    def submit_chunk(
        self,
        room: str,
        decode: Sequence[str],
        token_start: int,
        num_tokens: int,
        source: PageRun,
        now: float,
        traceparent: str | None = None,
    ) -> tuple[Output, ...]:
        """Tokens ``[token_start, + num_tokens)`` of this room are computed and lie in ``source``.

        ``source`` lists the pages of the whole room so far; the latest one holds for everything not yet written. Unknown decode
        endpoints are joined. Raises ``RoomRefused`` and changes nothing.
        """
        self._at(now)
        self._submitting.submit(room, decode, token_start, num_tokens, source, traceparent)
        return self._collect()

    def finish_room(self, room: str, now: float) -> tuple[Output, ...]:
        """The room has all its tokens; the last chunk may be short. Raises ``RoomRefused``."""
        self._at(now)
        self._submitting.finish(room)
        return self._collect()

    def abort_room(self, room: str, now: float, reason: str = "the engine gave it up") -> tuple[Output, ...]:
        """Fail a live room; ``RoomFailed`` follows once none of its writes runs. Raises ``RoomRefused`` for an unknown room."""
        self._at(now)
        self._closing.abort_by_engine(room, reason)
        return self._collect()

    def room_result(self, room: str) -> RoomDone | RoomFailed | None:
        """How the room ended; ``None`` while it is live. Raises ``UnknownRoomError``."""
        return self._closing.result(room)

    def add_peer(self, peer: str, now: float, decode_rank: int | None = None) -> tuple[Output, ...]:
        """Keep a session with the decode rank at this endpoint; ``decode_rank`` refuses any other one there.

        Raises ``RoomRefused`` if no more peers are taken.
        """
        self._at(now)
        if self.state.over is not None:
            raise RoomRefused(*self.state.over)
        limit = self.settings.max_peers
        if peer not in self.state.peers and len(self.state.peers) >= limit:
            raise RoomRefused("busy", f"decode endpoints: limit {limit} is reached", limit)
        self._attempts.join(peer, decode_rank)
        return self._collect()

    def remove_peer(self, peer: str, now: float) -> tuple[Output, ...]:
        """Fail the rooms that go there, and ``Disconnect`` once none of our writes runs there. Unknown peers change nothing."""
        self._at(now)
        known = self.state.peers.get(peer)
        if known is not None:
            self._losing.leave(known, "peer_removed", "this decode endpoint was removed")
        return self._collect()

    def drain(self, now: float) -> tuple[Output, ...]:
        """Take no new rooms; those that are live go on, and may be submitted to, until they end (``is_idle``)."""
        self._at(now)
        self.state.draining = True
        return self._collect()

    def stop(self, now: float) -> tuple[Output, ...]:
        """Fail what is live and leave every peer as its last write ends (``is_stopped``)."""
        self._at(now)
        self._losing.end_life("stopped", "this prefill rank was stopped")
        return self._collect()

    @property
    def is_idle(self) -> bool:
        """Whether no room is live and no write runs."""
        return len(self.state.rooms) == 0 and not self.state.writes.running

    @property
    def is_stopped(self) -> bool:
        """Whether the end of this life is complete: it was stopped or superseded, and every peer has been left."""
        return self.state.over is not None and not self.state.peers and self.is_idle

    # ---- what peers say -------------------------------------------------------------------------------------------------

    def receive(self, peer: str, message: ToPrefill, now: float) -> tuple[Output, ...]:
        """Take one valid message from the decode rank at this endpoint."""
        self._at(now)
        known = self.state.peers.get(peer)
        if known is None:
            self.state.counters["messages_of_unknown_peer"] += 1
            return self._collect()
        known.heard[frame_name(type(message))] = now
        self._losing.lose_if_lapsed(known)
        self._dispatch(known, message)
        return self._collect()

    def _dispatch(self, peer: Peer, message: ToPrefill) -> None:
        match message:
            case Subscribed():
                self._subscribing.subscribed(peer, message)
            case Refused():
                self._subscribing.refused(peer, message)
            case WatermarkUpdate() | StagingRsp() | ChunkDone():
                self._hear_in_session(peer, message)
            case HeartbeatAck():
                self._heartbeats.acknowledged(peer, message)
            case Abort():
                self._closing.abort_received(peer, message)
            case AbortAck():
                self._closing.abort_acknowledged(peer, message)
            case Goodbye():
                self._subscribing.goodbye_received(peer, message)
            case Error():
                self._subscribing.error_received(peer, message)
            case _:
                assert_never(message)

    def _hear_in_session(self, peer: Peer, message: WatermarkUpdate | StagingRsp | ChunkDone) -> None:
        session = peer.session
        if session is None or session.id != message.session:
            self.state.counters["stale_sessions"] += 1
        elif isinstance(message, WatermarkUpdate):
            self._transfers.watermark_heard(session, message.watermark)
        elif isinstance(message, StagingRsp):
            self._transfers.answered(peer, session, message)
        else:
            self._transfers.judged(peer, session, message)

    # ---- what the shell reports -----------------------------------------------------------------------------------------

    def plane_opened(self, peer: str, session: str, now: float) -> tuple[Output, ...]:
        """An ``OpenPlane`` has been carried out."""
        self._at(now)
        self._subscribing.plane_opened(self._known(peer), session)
        return self._collect()

    def plane_failed(self, peer: str, session: str, reason: str, now: float) -> tuple[Output, ...]:
        """An ``OpenPlane`` could not be carried out; nothing is left to close."""
        self._at(now)
        self._subscribing.plane_failed(self._known(peer), session, reason)
        return self._collect()

    def write_finished(self, write_id: int, checksum: int | None, now: float) -> tuple[Output, ...]:
        """A ``WriteChunk`` is complete: its bytes are visible to D. Raises ``LocalProtocolError`` if it does not run."""
        self._at(now)
        write = self._ended(write_id)
        self._transfers.write_finished(write, checksum)
        self._settle(write)
        return self._collect()

    def write_failed(self, write_id: int, reason: str, now: float) -> tuple[Output, ...]:
        """A ``WriteChunk`` has ended without being complete. Raises ``LocalProtocolError`` if it does not run."""
        self._at(now)
        write = self._ended(write_id)
        self._transfers.write_failed(write, reason)
        self._settle(write)
        return self._collect()

    def _known(self, endpoint: str) -> Peer:
        peer = self.state.peers.get(endpoint)
        if peer is None:
            raise LocalProtocolError(f"no plane is being opened for {endpoint}: it is not a peer")
        return peer

    def _ended(self, write_id: int) -> Write:
        write = self.state.writes.end(write_id)
        peer = self.state.peers.get(write.session.peer)
        if peer is not None:
            self._losing.lose_if_lapsed(peer)
        return write

    def _settle(self, write: Write) -> None:
        self._closing.write_ended(write)
        self._losing.write_ended(write)

    # ---- time -----------------------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """When ``tick`` has something to do, or ``None``."""
        return self.state.timers.next()

    def tick(self, now: float) -> tuple[Output, ...]:
        """Do what is due. Costs as much as is due."""
        self._at(now)
        self.state.rooms.expire(now)
        # Leases first: after a long sleep nothing may be said in a session that has lapsed meanwhile.
        for key in sorted(self.state.timers.pop_due(now), key=lambda due: due.kind is not TimerKind.LEASE):
            if key not in self.state.timers:  # otherwise one that was due before it has begun it anew
                self._run(key)
        return self._collect()

    def as_of(self, now: float) -> PrefillState:
        """What is known, as somebody sees it who looks on at ``now``. It is the machine's own memory: only to be read."""
        view = copy(self.state)
        view.now = max(now, self.state.now)
        return view

    def snapshot(self) -> Snapshot:
        """The whole memory as plain data, for inspection and explanation."""
        return snapshot(self.state)

    def _run(self, key: TimerKey) -> None:
        """Do one due thing. One that was due before it may have ended what it is about."""
        if key.kind is TimerKind.CHUNK:
            self._transfers.chunk_due(key.peer, key.room, key.chunk)
        elif key.kind is TimerKind.ABORT:
            self._closing.retry_abort(key.peer, key.room)
        elif key.kind is TimerKind.ROOM:
            self._closing.deadline_due(key.room)
        elif (peer := self.state.peers.get(key.peer)) is not None:
            self._run_for(peer, key.kind)

    def _run_for(self, peer: Peer, kind: TimerKind) -> None:
        if kind is TimerKind.SUBSCRIBE:
            self._attempts.due(peer)
        elif kind is TimerKind.STOP_WAIT:
            self._losing.stop_wait_due(peer)
        elif kind is TimerKind.LEASE:
            self._losing.lease_due(peer)
        elif peer.session is not None and kind is TimerKind.HEARTBEAT:
            self._heartbeats.heartbeat_due(peer.session)
        elif peer.session is not None and kind is TimerKind.TURN:
            self._transfers.turn_due(peer.session)
        elif peer.session is not None:
            assert kind is TimerKind.PROBE
            self._heartbeats.probe_due(peer.session)

    # ---- plumbing -------------------------------------------------------------------------------------------------------

    def _at(self, now: float) -> None:
        assert now >= self.state.now, f"time went back from {self.state.now} to {now}"
        self.state.now = now

    def _collect(self) -> tuple[Output, ...]:
        self._writing.start_ready()
        out, self.state.out = tuple(self.state.out), []
        return out
