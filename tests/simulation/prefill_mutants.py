"""Mutants of the prefill side: sessions and leases, requests and writes, ends of rooms."""

from typing import Any

import pytest

from prefill_service.attempts import Attempts
from prefill_service.chunks import ChunkEvent, ChunkState
from prefill_service.closing import Closing
from prefill_service.heartbeats import Heartbeats
from prefill_service.losing import Losing
from prefill_service.repeats import Repeats
from prefill_service.sessions import PeerState, Session
from prefill_service.submitting import Submitting
from prefill_service.subscribing import Subscribing
from prefill_service.transfers import Transfers
from prefill_service.writing import Writing
from protocol.messages import DoneStatus
from tests.simulation.mutants import Register, nothing

prefill = Register()

# ---- sessions -----------------------------------------------------------------------------------------------------------


@prefill.without("a subscription is repeated until it is answered")
def subscribes_once(patch: pytest.MonkeyPatch) -> None:
    """A lost answer is never asked for again."""
    patch.setattr(Attempts, "due", nothing)


@prefill.without("only the answer to the latest attempt counts")
def any_answer_counts(patch: pytest.MonkeyPatch) -> None:
    """A late answer is adopted as if it were to the latest attempt."""
    shipped = Subscribing.subscribed

    def subscribed(self: Subscribing, peer: Any, message: Any) -> None:
        latest, peer.attempt = peer.attempt, message.attempt
        shipped(self, peer, message)
        peer.attempt = max(latest, peer.attempt)

    patch.setattr(Subscribing, "subscribed", subscribed)


@prefill.without("an answer to another life is dropped")
def answers_of_another_life_count(patch: pytest.MonkeyPatch) -> None:
    """Neither the attempt nor the life is compared."""

    def subscribed(self: Subscribing, peer: Any, message: Any) -> None:
        if peer.session is None and peer.state is PeerState.SUBSCRIBING and not peer.leaving:
            self._consider(peer, message)

    patch.setattr(Subscribing, "subscribed", subscribed)


@prefill.without("a lease runs from the sending of what was answered")
def lease_runs_from_the_answer(patch: pytest.MonkeyPatch) -> None:
    """The journey of the answer is not counted."""
    shipped = Heartbeats.acknowledged

    def acknowledged(self: Heartbeats, peer: Any, message: Any) -> None:
        shipped(self, peer, message)
        session = peer.session
        if session is not None and session.id == message.session:
            session.lease_until = self.state.now + session.terms.lease_s

    patch.setattr(Heartbeats, "acknowledged", acknowledged)


@prefill.without("heartbeats renew the lease")
def heart_stands_still(patch: pytest.MonkeyPatch) -> None:
    """No heartbeat is ever sent."""
    patch.setattr(Heartbeats, "heartbeat_due", nothing)
    patch.setattr(Heartbeats, "probe_due", nothing)


@prefill.without("the next subscription waits for the last write of the lost session")
def stopped_is_said_too_early(patch: pytest.MonkeyPatch) -> None:
    """It says that all has stopped while it writes."""
    shipped = Losing.finish_if_over

    def finish(self: Losing, peer: Any, session: Session) -> None:
        running, session.running = session.running, set()
        shipped(self, peer, session)
        session.running = running

    patch.setattr(Losing, "finish_if_over", finish)


@prefill.without("a session that is unknown to the decode rank is given up")
def errors_are_ignored(patch: pytest.MonkeyPatch) -> None:
    """It goes on in a session that nobody knows."""
    patch.setattr(Subscribing, "error_received", nothing)


@prefill.without("a complaint about another session changes nothing")
def any_complaint_ends_the_session(patch: pytest.MonkeyPatch) -> None:
    """A late one ends the session that works."""

    def error(self: Subscribing, peer: Any, _: Any) -> None:
        if peer.session is not None:
            self.losing.lose(peer, "somebody complained")

    patch.setattr(Subscribing, "error_received", error)


@prefill.without("what a former life of a decode rank knew is gone with it")
def decode_restart_goes_unnoticed(patch: pytest.MonkeyPatch) -> None:
    """Rooms go on with a rank that never heard of them."""
    patch.setattr(Closing, "decode_restarted", nothing)


@prefill.without("a plane that does not open is not offered again")
def closed_plane_is_offered_again(patch: pytest.MonkeyPatch) -> None:
    """The same plane is negotiated for ever."""
    patch.setattr(Attempts, "offer", lambda self, _peer: self.state.settings.planes)


@prefill.without("a superseded life ends")
def superseded_life_goes_on(patch: pytest.MonkeyPatch) -> None:
    """It asks again and again, and its rooms with it."""
    patch.setattr(Losing, "end_life", nothing)


@prefill.without("a chunk of a lost session returns to its source pages")
def lost_chunks_stay_lost(patch: pytest.MonkeyPatch) -> None:
    """What was granted in a session that is over is never asked for again."""

    def lost(self: Transfers, session: Session) -> None:
        for room in self.state.rooms.of_peer(session.peer):
            for chunk in room.targets[session.peer].open.values():
                self.closing.withdraw(chunk)

    patch.setattr(Transfers, "session_lost", lost)
    patch.setattr(Transfers, "resume", nothing)


# ---- requests and writes ------------------------------------------------------------------------------------------------


@prefill.without("a request is repeated until it is answered")
def asks_once(patch: pytest.MonkeyPatch) -> None:
    """A lost answer is never asked for again."""
    shipped = Transfers.chunk_due

    def due(self: Transfers, endpoint: str, room_id: str, index: int) -> None:
        room = self.state.rooms.live(room_id)
        chunk = room.targets[endpoint].open.get(index) if room is not None else None
        if chunk is None or chunk.state is not ChunkState.REQUESTED:
            shipped(self, endpoint, room_id, index)

    patch.setattr(Transfers, "chunk_due", due)


@prefill.without("a word is repeated until it is judged")
def says_ready_once(patch: pytest.MonkeyPatch) -> None:
    """A lost word is never said again."""
    shipped = Transfers.chunk_due

    def due(self: Transfers, endpoint: str, room_id: str, index: int) -> None:
        room = self.state.rooms.live(room_id)
        chunk = room.targets[endpoint].open.get(index) if room is not None else None
        if chunk is None or chunk.state is not ChunkState.WRITTEN:
            shipped(self, endpoint, room_id, index)

    patch.setattr(Transfers, "chunk_due", due)


@prefill.without("a blocked chunk asks for the watermark")
def never_probes(patch: pytest.MonkeyPatch) -> None:
    """A lost watermark is made up for by chance, or by the next heartbeat."""
    patch.setattr(Heartbeats, "probe_due", nothing)


@prefill.without("no first request is ever withheld")
def one_request_at_a_time(patch: pytest.MonkeyPatch) -> None:
    """The next chunk is asked for when the former one is scattered."""
    shipped = Repeats.send_request
    asked: dict[str, Any] = {}

    def send(self: Repeats, session: Session, chunk: Any) -> None:
        held = asked.get(session.id)
        if held is not None and held is not chunk and held.state is ChunkState.REQUESTED:
            self._set_retry(chunk)
        else:
            asked[session.id] = chunk
            shipped(self, session, chunk)

    patch.setattr(Repeats, "send_request", send)


@prefill.without("a crowd that was turned away takes turns")
def crowd_has_no_turns(patch: pytest.MonkeyPatch) -> None:
    """One that was turned away behind others waits until something of its session is scattered."""
    patch.setattr(Repeats, "_set_turn", nothing)


@prefill.without("whoever waits for no turn repeats by itself")
def crowd_is_left_in_silence(patch: pytest.MonkeyPatch) -> None:
    """An old answer takes a chunk out of the crowd, and nothing makes it ask again."""
    patch.setattr(Repeats, "turned_away_no_more", lambda _, session, chunk: session.busy.pop(chunk))


@prefill.without("a word is given when the bytes are there")
def says_ready_too_early(patch: pytest.MonkeyPatch) -> None:
    """The word goes out when the write begins."""
    shipped = Writing._start

    def start(self: Writing, chunk: Any, session: Any) -> None:
        shipped(self, chunk, session)
        self.losing.transfers.repeats.announce(session, chunk)

    patch.setattr(Writing, "_start", start)


@prefill.without("a grant is written again only when its current attempt was rejected")
def writes_again_unasked(patch: pytest.MonkeyPatch) -> None:
    """Without a verdict the chunk is written once more."""
    shipped = Transfers.chunk_due

    def due(self: Transfers, endpoint: str, room_id: str, index: int) -> None:
        room = self.state.rooms.live(room_id)
        chunk = room.targets[endpoint].open.get(index) if room is not None else None
        session = self.state.session_of(endpoint)
        if chunk is not None and chunk.state is ChunkState.WRITTEN and session is not None:
            self._rejected(session, chunk)
        else:
            shipped(self, endpoint, room_id, index)

    patch.setattr(Transfers, "chunk_due", due)


@prefill.without("a rejection of another attempt is dropped")
def any_rejection_counts(patch: pytest.MonkeyPatch) -> None:
    """A late one makes it write what was accepted."""
    patch.setattr(Transfers, "_awaits_verdict", lambda _self, chunk, _attempt: chunk.state is ChunkState.WRITTEN)


@prefill.without("stale means to ask again")
def stale_is_ignored(patch: pytest.MonkeyPatch) -> None:
    """The chunk says for ever that its bytes are where nobody looks."""
    shipped = Transfers.judged

    def judged(self: Transfers, peer: Any, session: Any, message: Any) -> None:
        if message.status is not DoneStatus.STALE:
            shipped(self, peer, session, message)

    patch.setattr(Transfers, "judged", judged)


@prefill.without("an empty slice is neither asked for, sent nor waited for")
def empty_slices_are_asked_for(patch: pytest.MonkeyPatch) -> None:
    """A rank that owes nothing asks all the same."""
    shipped = Transfers._create

    def create(self: Transfers, room: Any, target: Any) -> Any:
        target.owes_nothing = False
        return shipped(self, room, target)

    patch.setattr(Transfers, "_create", create)


@prefill.without("the bytes of a failed one-sided write may land at any time")
def failed_write_is_tried_again(patch: pytest.MonkeyPatch) -> None:
    """The same grant is written once more."""

    def taint(self: Transfers, session: Any, chunk: Any, *_: Any) -> None:
        if chunk.state is ChunkState.WRITING:
            chunk.apply(ChunkEvent.FAILED, self.state.now)
            self._to_gate(session, chunk)

    patch.setattr(Transfers, "_taint", taint)


# ---- ends ---------------------------------------------------------------------------------------------------------------


@prefill.without("an abort is acknowledged when no write of the room runs")
def acknowledges_at_once(patch: pytest.MonkeyPatch) -> None:
    """The acknowledgement overtakes the write."""
    shipped = Closing.abort_received

    def received(self: Closing, peer: Any, message: Any) -> None:
        self._acknowledge(peer.endpoint, message.room, message.session, message.abort_id)
        shipped(self, peer, message)

    patch.setattr(Closing, "abort_received", received)


@prefill.without("writes are counted one by one")
def one_end_ends_all(patch: pytest.MonkeyPatch) -> None:
    """When one write of a room has ended, all are taken to have."""
    shipped = Closing.write_ended

    def ended(self: Closing, write: Any) -> None:
        target = write.room.targets[write.chunk.peer]
        running, target.running = target.running, {}
        self._settle_target(write.room, target)
        target.running = running
        shipped(self, write)

    patch.setattr(Closing, "write_ended", ended)


@prefill.without("an abort is acknowledged also for a room that is unknown")
def only_known_rooms_are_acknowledged(patch: pytest.MonkeyPatch) -> None:
    """The decode rank repeats it as long as it remembers the room."""
    shipped = Closing.abort_received

    def received(self: Closing, peer: Any, message: Any) -> None:
        if self.state.rooms.live(message.room) is not None:
            shipped(self, peer, message)

    patch.setattr(Closing, "abort_received", received)


@prefill.without("an abort of ours is repeated until it is acknowledged")
def aborts_once(patch: pytest.MonkeyPatch) -> None:
    """A lost abort leaves the decode rank waiting."""
    patch.setattr(Closing, "retry_abort", nothing)
    patch.setattr(Closing, "resume_aborts", nothing)


@prefill.without("every decode rank hears of a failed room at once")
def failure_is_told_to_nobody(patch: pytest.MonkeyPatch) -> None:
    """The others wait for their deadline."""
    patch.setattr(Closing, "_start_abort", nothing)


@prefill.without("the source pages are kept until the last write has ended")
def pages_are_given_back_too_early(patch: pytest.MonkeyPatch) -> None:
    """The engine hears of the end while its pages are being read."""
    patch.setattr("prefill_service.rooms.Room.is_quiet", property(lambda _: True))


@prefill.without("a room without progress fails")
def no_deadline_here(patch: pytest.MonkeyPatch) -> None:
    """It waits for ever for tokens that never come."""
    patch.setattr(Closing, "deadline_due", nothing)


@prefill.without("a decode rank that was not asked yet hears of the failure, too")
def unasked_ranks_hear_nothing(patch: pytest.MonkeyPatch) -> None:
    """Its engine waits for a room that is over."""
    shipped = Closing.fail_room

    def fail(self: Closing, room: Any, code: str, message: str, spared: str | None = None) -> None:
        for target in room.targets.values():
            target.known = any(chunk.state is not ChunkState.COMPUTED for chunk in target.open.values())
        shipped(self, room, code, message, spared)

    patch.setattr(Closing, "fail_room", fail)


@prefill.without("an id names no other room while the abort of the former one is unanswered")
def ids_return_while_aborted(patch: pytest.MonkeyPatch) -> None:
    """The old abort is repeated, and meets the new room."""
    shipped = Submitting._check_peer

    def check(self: Submitting, endpoint: str, room_id: str) -> None:
        peer = self.state.peers.get(endpoint)
        pending = peer.aborts.pop(room_id, None) if peer is not None else None
        shipped(self, endpoint, room_id)
        if peer is not None and pending is not None:
            peer.aborts[room_id] = pending

    patch.setattr(Submitting, "_check_peer", check)
    patch.setattr("decode_service.aborting.Aborting.is_pending", lambda *_: False)


@prefill.without("a write that outlasts the wait for it is not said to have ended")
def waiting_is_proof(patch: pytest.MonkeyPatch) -> None:
    """The next subscription says that the former session has stopped, and its write goes on."""
    shipped = Attempts.send

    def send(self: Attempts, peer: Any) -> None:
        if peer.lost is not None and peer.lost in peer.ended:
            peer.stopped, peer.lost = peer.lost, None
        shipped(self, peer)

    patch.setattr(Attempts, "send", send)


@prefill.without("no word of ours denies that a failed one-sided write may land")
def promises_despite_failed_writes(patch: pytest.MonkeyPatch) -> None:
    """It acknowledges an abort although its bytes are still on their way."""
    patch.setattr(Closing, "_confess", lambda *_: False)
    patch.setattr("prefill_service.sessions.Peer.is_unproven", lambda *_: False)
