"""Losing a session, and parting from a peer: what ends at once, and what must wait for the last write.

1. A session is given up as a whole. Its chunks return to their source pages at once; its writes run on alone, and their ends
   never touch what the next session does.
2. The next subscription waits until no write of the lost session runs, and names it in ``stopped``: D's proof for every grant
   it gave there. A write that does not end within ``stop_wait_s`` is not waited for any more, and a one-sided write that failed
   may land later: then D hears only that the session is ``lost``.
3. ``UNSUBSCRIBE`` is the same proof where no subscription follows, so it too waits for the last write, and is never said of a
   session with such a failed write. For D it is also the end of this life's rooms, unless D has replaced the session it names.
"""

from dataclasses import dataclass

from prefill_service.attempts import Attempts
from prefill_service.closing import Closing
from prefill_service.heartbeats import Heartbeats
from prefill_service.outputs import ClosePlane, Disconnect
from prefill_service.sessions import Peer, PeerState, PlaneState, Refusal, Session
from prefill_service.state import PrefillState, TimerKey, TimerKind
from prefill_service.transfers import Transfers
from prefill_service.writes import Write
from protocol.messages import Unsubscribe


@dataclass(slots=True, eq=False)
class Losing:
    """Ends sessions and parts from peers."""

    state: PrefillState
    closing: Closing
    transfers: Transfers
    heartbeats: Heartbeats
    attempts: Attempts

    def lose(self, peer: Peer, reason: str, *, at_once: bool = True) -> None:
        """Give the current session up and make ready for the next. ``at_once`` false: not before the retry interval is over."""
        session = peer.session
        assert session is not None
        self.state.counters["sessions_lost"] += 1
        if peer.is_current:
            peer.failed_planes.clear()
        peer.refusal = peer.refusal or Refusal("session_lost", reason, final=False)
        self.heartbeats.stop(peer.endpoint)
        peer.session, peer.state = None, PeerState.STOPPING
        peer.past.append(session.id)
        peer.ended[session.id], peer.stopping, peer.stopped, peer.lost = session, session.id, None, None
        self.transfers.session_lost(session)
        if not at_once:
            peer.attempt_sent = self.state.now + self.state.settings.retry_limit_s
        if session.running:
            key = TimerKey(TimerKind.STOP_WAIT, peer.endpoint)
            self.state.timers.set(key, self.state.now + self.state.settings.stop_wait_s)
        self.finish_if_over(peer, session)

    def lose_if_lapsed(self, peer: Peer) -> bool:
        """Give the session up if its lease has lapsed."""
        if peer.session is None or not self.heartbeats.has_lapsed(peer.session):
            return False
        self.state.counters["leases_lapsed"] += 1
        self.lose(peer, "its lease lapsed")
        return True

    def lease_due(self, peer: Peer) -> None:
        """The lease could have lapsed."""
        session = peer.session
        if session is not None and not self.lose_if_lapsed(peer):
            self.heartbeats.watch_lease(session)

    def stop_wait_due(self, peer: Peer) -> None:
        """Some write of the lost session did not end: go on without claiming that it did."""
        session = peer.ended.get(peer.stopping or "")
        if peer.state is not PeerState.STOPPING or session is None:
            return
        self.state.counters["writes_abandoned"] += len(session.running)
        for write_id in session.running:
            self.transfers.abandoned(self.state.writes.running[write_id])
        peer.stopping, peer.stopped, peer.lost = None, None, session.id
        if not peer.leaving:
            self.attempts.send(peer)

    def write_ended(self, write: Write) -> None:
        """A write has ended, perhaps the last one of a session that is lost or of a peer that we leave."""
        session = write.session
        peer = self.state.peers.get(session.peer)
        if peer is None:
            return
        if session.id in peer.ended:
            self.finish_if_over(peer, session)
        self._part_if_quiet(peer)

    def finish_if_over(self, peer: Peer, session: Session) -> None:
        """Do what waits for the end of a lost session's writes, and of the opening of its plane."""
        if session.running:
            return
        if session.plane is PlaneState.OPEN:
            self.state.emit(ClosePlane(peer.endpoint, session.id))
        if session.plane is not PlaneState.OPENING:
            del peer.ended[session.id]
        if peer.stopping == session.id and peer.state is PeerState.STOPPING and not peer.leaving:
            self.attempts.send_after(peer, session)
        elif not session.claimed:
            self._claim_late(peer, session)
        self._part_if_quiet(peer)

    def _claim_late(self, peer: Peer, session: Session) -> None:
        """The last write of a session that is not waited for any more has ended: that is proof for D, late as it comes.

        ``UNSUBSCRIBE`` also says that this life is over, so it may name a session only when D has another one for us, or when
        we leave. Until then the next attempt carries the claim.
        """
        session.claimed = True
        if peer.is_unproven(session.id):
            return
        if peer.leaving or peer.session is not None:
            self.state.send(peer.endpoint, Unsubscribe(session.id, "its last write has ended"))
        else:
            peer.stopped, peer.lost = session.id, None

    def leave(self, peer: Peer, code: str, reason: str) -> None:
        """Fail the rooms that go there, and part once none of our writes runs there."""
        peer.leaving, peer.rejoin = True, False
        self.closing.fail_rooms_of(peer, code, reason)
        self.state.timers.cancel(TimerKey(TimerKind.SUBSCRIBE, peer.endpoint))
        self._part_if_quiet(peer)

    def end_life(self, code: str, reason: str) -> None:
        """Take no more rooms for good, fail those that are live, and leave every peer."""
        if self.state.over is None:
            self.state.over = (code, reason)
        for room in self.state.rooms:
            self.closing.fail_room(room, code, reason)
        for peer in tuple(self.state.peers.values()):
            self.leave(peer, code, reason)

    def _part_if_quiet(self, peer: Peer) -> None:
        if not peer.leaving or self.state.peers.get(peer.endpoint) is not peer:
            return
        session = peer.session
        if session is not None and session.is_over:
            if not peer.is_unproven(session.id):
                self.state.send(peer.endpoint, Unsubscribe(session.id, "it leaves"))
            if session.plane is PlaneState.OPEN:
                self.state.emit(ClosePlane(peer.endpoint, session.id))
            self.heartbeats.stop(peer.endpoint)
            peer.session = session = None
        if session is None and not peer.ended:
            self._part(peer)

    def _part(self, peer: Peer) -> None:
        self.closing.forget_peer(peer)
        for kind in (TimerKind.SUBSCRIBE, TimerKind.STOP_WAIT):
            self.state.timers.cancel(TimerKey(kind, peer.endpoint))
        del self.state.peers[peer.endpoint]
        self.state.emit(Disconnect(peer.endpoint))
        if peer.rejoin:
            self.attempts.join(peer.endpoint, peer.expected_rank)
