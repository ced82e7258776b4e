"""Asking for a session: one ``SUBSCRIBE`` per attempt, with the planes that may still open and the session that has stopped."""

from dataclasses import dataclass

from prefill_service.outputs import Connect
from prefill_service.sessions import Peer, PeerState, PlaneState, Session
from prefill_service.state import PrefillState, TimerKey, TimerKind
from protocol.limits import MAX_ATTEMPT
from protocol.messages import Subscribe

_ATTEMPT_START = 1 << 20


@dataclass(slots=True, eq=False)
class Attempts:
    """Begins and repeats subscriptions."""

    state: PrefillState

    def join(self, endpoint: str, expected_rank: int | None = None) -> None:
        """Begin to subscribe at this endpoint, unless that has been done; one that is leaving joins again afterwards."""
        peer = self.state.peers.get(endpoint)
        if peer is not None:
            peer.rejoin, peer.expected_rank = peer.leaving, expected_rank
            return
        settings = self.state.settings
        # A random start, so that a late answer to a former life's attempt hardly ever matches ours.
        attempt = self.state.random.randrange(_ATTEMPT_START)
        peer = Peer(endpoint, expected_rank, attempt, self.state.backoff(settings.subscribe_retry_s))
        self.state.peers[endpoint] = peer
        self.state.emit(Connect(endpoint))
        self.send(peer)

    def due(self, peer: Peer) -> None:
        """No answer came in time, or the wait before the next attempt is over."""
        if peer.state is PeerState.SUBSCRIBING:
            self.send(peer)

    def send(self, peer: Peer) -> None:
        """Ask now, under a new number, and again if no answer comes."""
        settings = self.state.settings
        peer.state = PeerState.SUBSCRIBING
        peer.attempt = peer.attempt + 1 if peer.attempt < MAX_ATTEMPT else 1
        peer.attempt_sent = self.state.now
        request = Subscribe(
            attempt=peer.attempt,
            versions=settings.versions,
            features=settings.features,
            prefill_id=settings.prefill_id,
            group=settings.group,
            incarnation=settings.incarnation,
            decode_rank=peer.expected_rank,
            chunk_tokens=settings.chunk_tokens,
            layout=settings.layout,
            planes=self.offer(peer),
            host_id=settings.host_id,
            stopped=peer.stopped,
            lost=peer.lost,
        )
        self.state.send(peer.endpoint, request)
        self.state.retry(TimerKey(TimerKind.SUBSCRIBE, peer.endpoint), peer.backoff)

    def send_after(self, peer: Peer, session: Session) -> None:
        """No write of this lost session runs: say what that proves, and ask for the next as soon as the pace allows."""
        self.state.timers.cancel(TimerKey(TimerKind.STOP_WAIT, peer.endpoint))
        peer.stopping, peer.state, session.claimed = None, PeerState.SUBSCRIBING, True
        peer.give_up(session.id)
        if peer.attempt_sent <= self.state.now - self._pause_s(session):
            self.send(peer)
            return
        self.state.timers.set(TimerKey(TimerKind.SUBSCRIBE, peer.endpoint), peer.attempt_sent + self._pause_s(session))

    def offer(self, peer: Peer) -> tuple[str, ...]:
        """The planes that have not failed to open, best first."""
        return tuple(plane for plane in self.state.settings.planes if plane not in peer.failed_planes)

    def _pause_s(self, session: Session) -> float:
        """Least time between two attempts. Trying the next plane needs none: there are only so many."""
        return 0.0 if session.plane is PlaneState.FAILED else self.state.settings.subscribe_retry_s
