"""What D answers to a ``SUBSCRIBE``, and what becomes of the data plane it names.

1. Only the answer to the latest attempt of this life counts.
2. A session is current once its plane is open. A plane that does not open is not offered again until a session has worked; if
   none is left, the rooms that go there fail with every reason, and all planes are tried again, slowly.
3. A lost session never comes back. If D still takes it for alive, the next attempt says that it has stopped, if that is true,
   or else that it is lost: bytes may still land in what it was granted, and D must do without proof.
4. Being refused never ends the asking, except when a newer life of this rank has taken its place.
"""

from dataclasses import dataclass

from prefill_service.attempts import Attempts
from prefill_service.closing import Closing
from prefill_service.heartbeats import Heartbeats
from prefill_service.losing import Losing
from prefill_service.outputs import OpenPlane
from prefill_service.sessions import Peer, PeerState, PlaneState, Refusal, Session
from prefill_service.shares import WriterShare
from prefill_service.state import PrefillState, TimerKey, TimerKind
from prefill_service.transfers import Transfers
from protocol.errors import LayoutError, LocalProtocolError
from protocol.limits import MAX_TEXT_BYTES
from protocol.messages import Error, ErrorCode, Goodbye, Refused, RefusedCode, Subscribed
from protocol.timers import Backoff

_WORTH_WAITING = frozenset({RefusedCode.TOO_MANY_SESSIONS, RefusedCode.DRAINING, RefusedCode.WRITER_TAKEN})
"""Refusals that pass by themselves: rooms wait for that until their deadline."""


@dataclass(slots=True, eq=False)
class Subscribing:
    """Takes sessions up."""

    state: PrefillState
    closing: Closing
    transfers: Transfers
    heartbeats: Heartbeats
    attempts: Attempts
    losing: Losing

    def subscribed(self, peer: Peer, message: Subscribed) -> None:
        """D's answer to a ``SUBSCRIBE``."""
        if (message.attempt, message.incarnation) != (peer.attempt, self.state.settings.incarnation) or peer.leaving:
            self.state.counters["subscribe_answers_ignored"] += 1
        elif peer.session is not None:
            if message.session != peer.session.id:
                self.losing.lose(peer, "another session was granted")
        elif peer.state is PeerState.SUBSCRIBING:
            self._consider(peer, message)

    def refused(self, peer: Peer, message: Refused) -> None:
        """D declines; it is asked again all the same, unless this life is over."""
        if message.attempt != peer.attempt or peer.state is not PeerState.SUBSCRIBING or peer.leaving:
            self.state.counters["subscribe_answers_ignored"] += 1
            return
        self.state.counters[f"refused_{message.code.value}"] += 1
        if message.code is RefusedCode.SUPERSEDED:
            self.losing.end_life("superseded", f"{peer.endpoint}: {message.message}")
            return
        rows = [f"{row.field}: prefill {row.prefill}, decode {row.decode}" for row in message.diff]
        self._turn_away(peer, message.code.value, "; ".join([message.message, *rows]), message.code not in _WORTH_WAITING)

    def plane_opened(self, peer: Peer, session_id: str) -> None:
        """The shell has opened this session's plane: chunks may move."""
        session = self._session_opening(peer, session_id)
        session.plane = PlaneState.OPEN
        if session is not peer.session:
            self.losing.finish_if_over(peer, session)
            return
        peer.state, peer.refusal = PeerState.CURRENT, None
        peer.backoff.reset()
        self.state.counters["sessions_opened"] += 1
        self.transfers.resume(session)
        self.closing.resume_aborts(peer)

    def plane_failed(self, peer: Peer, session_id: str, reason: str) -> None:
        """This plane does not open here: negotiate without it, or fail the rooms if none is left and try all of them later.

        A first failure only asks again: the region may have been replaced while the answer travelled, and what it named went.
        """
        session = self._session_opening(peer, session_id)
        session.plane = PlaneState.FAILED
        if session is not peer.session:
            self.losing.finish_if_over(peer, session)
            return
        self.state.counters["planes_failed"] += 1
        if peer.missed_planes.get(session.terms.plane) != session.terms.epoch:
            peer.missed_planes[session.terms.plane] = session.terms.epoch
            self.losing.lose(peer, "its plane did not open; the region may have been replaced")
            return
        peer.failed_planes[session.terms.plane] = reason
        if self.attempts.offer(peer):
            self.losing.lose(peer, "its plane did not open")
            return
        text = "; ".join(f"plane {plane}: {why}" for plane, why in peer.failed_planes.items())
        peer.failed_planes.clear()
        self._turn_away(peer, "plane_failed", text[:MAX_TEXT_BYTES], final=True)
        self.losing.lose(peer, "no plane opens", at_once=False)

    def error_received(self, peer: Peer, message: Error) -> None:
        """D complains; only its word that it does not know the current session changes anything."""
        self.state.counters[f"errors_{message.code.value}"] += 1
        is_current = peer.session is not None and peer.session.id == message.session
        if is_current and message.code is ErrorCode.UNKNOWN_SESSION:
            self.losing.lose(peer, "it is unknown to the decode rank")

    def goodbye_received(self, peer: Peer, message: Goodbye) -> None:
        """D drains: what it granted goes on, and what it will not grant waits for its successor."""
        if peer.session is not None and peer.session.id == message.session:
            peer.session.draining = True
        else:
            self.state.counters["stale_sessions"] += 1

    def _turn_away(self, peer: Peer, code: str, message: str, final: bool) -> None:
        peer.refusal = Refusal(code, message, final)
        if final:
            self.closing.fail_rooms_of(peer, code, message)

    def _consider(self, peer: Peer, message: Subscribed) -> None:
        problem = self._problem(peer, message)
        if problem is not None:
            self._turn_away(peer, *problem, final=True)
        elif message.session in peer.past:
            self._return_lost_session(peer, message.session)
        else:
            self._adopt(peer, message)

    def _problem(self, peer: Peer, message: Subscribed) -> tuple[str, str] | None:
        """What speaks against this session, although D granted it."""
        low, high = self.state.settings.versions
        if not low <= message.version <= high:
            return "version", f"version is {message.version}, expected {low} to {high}"
        if message.plane not in self.attempts.offer(peer):
            return "no_plane", f"plane is {message.plane!r}, expected one of {', '.join(self.attempts.offer(peer))}"
        if peer.expected_rank not in {None, message.decode_rank}:
            return "wrong_rank", f"decode rank {message.decode_rank} answers here, expected {peer.expected_rank}"
        try:
            WriterShare.between(self.state.settings.layout, message.layout)
        except LayoutError as error:
            return "layout", str(error)
        return None

    def _return_lost_session(self, peer: Peer, session_id: str) -> None:
        self.state.counters["lost_sessions_returned"] += 1
        session = peer.ended.get(session_id)
        if session is None or not session.running:
            peer.give_up(session_id)
        else:
            peer.lost = session_id

    def _adopt(self, peer: Peer, message: Subscribed) -> None:
        if peer.decode_incarnation not in {None, message.decode_incarnation}:
            self.state.counters["decode_restarts"] += 1
            self.closing.decode_restarted(peer)
        peer.decode_incarnation = message.decode_incarnation
        session = Session(
            peer=peer.endpoint,
            terms=message,
            share=WriterShare.between(self.state.settings.layout, message.layout),
            lease_until=peer.attempt_sent + message.lease_s,
            probe=Backoff(self.state.settings.probe_s, max(self.state.settings.probe_s, message.heartbeat_s)),
        )
        peer.session, peer.state, peer.stopped, peer.lost = session, PeerState.OPENING, None, None
        self.state.timers.cancel(TimerKey(TimerKind.SUBSCRIBE, peer.endpoint))
        self.heartbeats.start(session)
        terms = (message.plane, message.region, message.ring_size, message.layout)
        self.state.emit(OpenPlane(peer.endpoint, session.id, *terms))

    def _session_opening(self, peer: Peer, session_id: str) -> Session:
        session = peer.session if peer.session is not None and peer.session.id == session_id else peer.ended.get(session_id)
        if session is None or session.plane is not PlaneState.OPENING:
            raise LocalProtocolError(f"no plane of session {session_id!r} is being opened for {peer.endpoint}")
        return session
