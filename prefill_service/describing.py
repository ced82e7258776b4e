"""Facts about decode ranks and sessions in plain words: how the way there is, what was last heard and said, what comes next.

Everything is derived from the machine's state at the moment of the question. Times are seconds before now, or from now on.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from prefill_service.rooms import Room
from prefill_service.sessions import Peer, PeerState, Session
from prefill_service.state import PrefillState, TimerKey, TimerKind


@dataclass(frozen=True, slots=True)
class Coming:
    """Something that will happen by itself, in how many seconds."""

    what: str
    in_s: float

    def __str__(self) -> str:
        return f"in {seconds(self.in_s)} {self.what}"


@dataclass(frozen=True, slots=True)
class Unsent:
    """Messages to one decode rank that did not leave this host since the last one that did."""

    since: float
    """When the first of them was to be sent."""
    messages: int
    obstacle: str
    """Why, in words that go before the endpoint."""
    reason: str = ""
    """What is known of how the last connection failed."""


NONE_UNSENT: Mapping[str, Unsent] = {}


def seconds(value: float) -> str:
    """A duration as people say it."""
    return f"{max(0.0, value):.1f} s"


def due(state: PrefillState, key: TimerKey, what: str) -> Iterator[Coming]:
    """What the machine will do at this deadline, if it is set."""
    at = state.timers.deadline(key)
    if at is not None:
        yield Coming(what, at - state.now)


def decode_name(peer: Peer) -> str:
    """A decode rank as an operator knows it."""
    if peer.session is None:
        return f"the decode rank at {peer.endpoint}"
    terms = peer.session.terms
    return f"decode {terms.decode_id!r} rank {terms.decode_rank} at {peer.endpoint}"


def way_there(state: PrefillState, peer: Peer, unsent: Unsent | None = None) -> str:
    """Why there is no session in which chunks could move."""
    if peer.state is PeerState.SUBSCRIBING and unsent is not None:
        words = f"to be reached: {unsent_words(state, peer, unsent)}"
    elif peer.state is PeerState.SUBSCRIBING:
        words = f"to answer the subscription (attempt {peer.attempt}, sent {seconds(state.now - peer.attempt_sent)} ago)"
    elif peer.state is PeerState.OPENING:
        words = "and for its data plane to open"
    else:
        running = sum(len(old.running) for old in peer.ended.values())
        words = f"until {running} writes of the lost session have ended"
    if (refusal := refused(peer)) is not None:
        words += f"; the last one ended with {refusal}"
    return f"{decode_name(peer)} {words}"


def unsent_words(state: PrefillState, peer: Peer, unsent: Unsent) -> str:
    """Since when nothing leaves towards this decode rank, and why."""
    number = f"{unsent.messages} message" + ("" if unsent.messages == 1 else "s")
    words = f"{unsent.obstacle} {peer.endpoint} since {seconds(state.now - unsent.since)} ({number} could not leave)"
    return f"{words}; last failure: {unsent.reason}" if unsent.reason else words


def frames(state: PrefillState, peer: Peer, unsent: Unsent | None = None) -> str:
    """The last frame each way, or why nothing leaves."""
    heard = _latest(state, peer.heard)
    to_it = f"last frame to it: {_latest(state, peer.sent)}" if unsent is None else unsent_words(state, peer, unsent)
    return f"last frame from {decode_name(peer)}: {heard}; {to_it}"


def refused(peer: Peer) -> str | None:
    """How the last subscription was turned away, if there is no session since."""
    return None if peer.refusal is None else f"{peer.refusal.code}: {peer.refusal.message}"


def lease_words(state: PrefillState, session: Session) -> str:
    """How long writes may still begin."""
    left = seconds(session.lease_until - state.now)
    words = f"the lease of session {session.id} ({session.terms.plane}) ends in {left} unless a heartbeat is answered"
    return f"{words}; {len(session.unanswered)} heartbeats are unanswered" if session.unanswered else words


def session_coming(state: PrefillState, peer: Peer) -> Iterator[Coming]:
    """What the way there will bring."""
    session = peer.session
    if session is None:
        yield from due(state, TimerKey(TimerKind.SUBSCRIBE, peer.endpoint), "it subscribes again")
        yield from due(state, TimerKey(TimerKind.STOP_WAIT, peer.endpoint), "the lost session's writes are waited for no more")
        return
    yield from due(
        state, TimerKey(TimerKind.PROBE, peer.endpoint), "it asks for the watermark again (HEARTBEAT with what blocks it)"
    )
    yield Coming("the lease ends and it subscribes anew, if nothing is answered until then", session.lease_until - state.now)


def room_coming(state: PrefillState, room: Room) -> Iterator[Coming]:
    """When the room fails at the latest."""
    yield from due(state, TimerKey(TimerKind.ROOM, room=room.id), "the room fails if nothing of it has moved until then")


def _latest(state: PrefillState, frames_at: dict[str, float]) -> str:
    if not frames_at:
        return "none"
    name, at = max(reversed(frames_at.items()), key=lambda entry: entry[1])
    return f"{name} {seconds(state.now - at)} ago"
