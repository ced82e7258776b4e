"""The life signs of a session: heartbeats, the lease they renew, and the probe that makes up for a lost watermark.

The lease runs from the *sending* of the last message that D answered, so whatever the answer's journey took, D's own view of
the lease ends later than ours. A probe is a heartbeat that says what blocks us; D's answer brings the current watermark, so one
lost ``WATERMARK`` costs at most two probe intervals and any finite number of losses heals.
"""

from dataclasses import dataclass

from prefill_service.sessions import Peer, Session
from prefill_service.state import PrefillState, TimerKey, TimerKind
from protocol.messages import Blocked, Heartbeat, HeartbeatAck


@dataclass(slots=True, eq=False)
class Heartbeats:
    """Sends heartbeats and probes, and judges the lease."""

    state: PrefillState

    def start(self, session: Session) -> None:
        """Begin with a new session."""
        self.state.timers.set(TimerKey(TimerKind.LEASE, session.peer), session.lease_until)
        self.state.timers.set(TimerKey(TimerKind.HEARTBEAT, session.peer), self.state.now + session.terms.heartbeat_s)

    def stop(self, endpoint: str) -> None:
        """The session with this peer is over."""
        for kind in (TimerKind.LEASE, TimerKind.HEARTBEAT, TimerKind.PROBE, TimerKind.TURN):
            self.state.timers.cancel(TimerKey(kind, endpoint))

    def heartbeat_due(self, session: Session) -> None:
        """Show that we live."""
        self._send(session)
        self.state.timers.set(TimerKey(TimerKind.HEARTBEAT, session.peer), self.state.now + session.terms.heartbeat_s)

    def acknowledged(self, peer: Peer, message: HeartbeatAck) -> None:
        """Renew the lease from the heartbeat that this answers."""
        session = peer.session
        if session is None or session.id != message.session or not session.answered(message.seq):
            self.state.counters["heartbeat_acks_ignored"] += 1

    def has_lapsed(self, session: Session) -> bool:
        """Say whether no write may start any more."""
        return self.state.now >= session.lease_until

    def watch_lease(self, session: Session) -> None:
        """Look again when the lease could have lapsed."""
        self.state.timers.set(TimerKey(TimerKind.LEASE, session.peer), session.lease_until)

    def blocked(self, session: Session) -> None:
        """One more grant waits at the gate: ask within ``probe_s``."""
        session.probe.reset()
        self._probe_by(session, self.state.now + session.probe.next_interval(self.state.random))

    def advanced(self, session: Session) -> None:
        """The watermark moved: what still waits has just been told why."""
        session.probe.reset()
        session.probe_at = None
        if len(session.gate):
            self.blocked(session)
        else:
            self.state.timers.cancel(TimerKey(TimerKind.PROBE, session.peer))

    def probe_due(self, session: Session) -> None:
        """Ask for the watermark if something still waits, and then less and less often."""
        session.probe_at = None
        if len(session.gate):
            self.state.counters["probes"] += 1
            self._send(session)
            self._probe_by(session, self.state.now + session.probe.next_interval(self.state.random))

    def _probe_by(self, session: Session, at: float) -> None:
        if session.probe_at is None or at < session.probe_at:
            session.probe_at = at
            self.state.timers.set(TimerKey(TimerKind.PROBE, session.peer), at)

    def _send(self, session: Session) -> None:
        seq = session.next_seq(self.state.now)
        self.state.send(session.peer, Heartbeat(session.id, seq, session.gate.watermark, self._blocked_part(session)))

    def _blocked_part(self, session: Session) -> Blocked | None:
        chunk = session.gate.first()
        if chunk is None:
            return None
        assert chunk.grant is not None
        return Blocked(chunk.room, chunk.index, chunk.grant.round, chunk.grant.end, self.state.now - chunk.since)
