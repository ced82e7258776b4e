"""Facts about writers and grants in plain words: who they are, what was last heard and said, and what will happen when.

Everything is derived from the machine's state at the moment of the question. Times are seconds before now, or from now on.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from decode_service.grants import Grant, GrantState, WriterSlot
from decode_service.rooms import Room
from decode_service.sessions import Session
from decode_service.state import DecodeState, TimerKey, TimerKind


@dataclass(frozen=True, slots=True)
class Coming:
    """Something that will happen by itself, in how many seconds (``None``: it waits for something else first)."""

    what: str
    in_s: float | None

    def __str__(self) -> str:
        return self.what if self.in_s is None else f"in {seconds(self.in_s)} {self.what}"


def seconds(value: float) -> str:
    """A duration as people say it."""
    return f"{max(0.0, value):.1f} s"


def plural(number: int, noun: str) -> str:
    """``1 chunk``, ``2 chunks``."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def session_name(session: Session) -> str:
    """A prefill as an operator knows it."""
    return f"prefill {session.request.prefill_id!r}"


def fence_in(state: DecodeState, session: Session) -> float:
    """Until this session is fenced, if it goes on saying nothing."""
    settings = state.settings
    return session.last_received + settings.lease_s + settings.grace_s - state.now


def quarantine_left(state: DecodeState, grant: Grant) -> float | None:
    """Until the ring is looked at because of this closed grant; ``None`` while it is not quarantined."""
    at = state.timers.deadline(TimerKey(TimerKind.QUARANTINE, chunk=grant.alloc_id))
    return None if at is None else at - state.now


def grant_name(grant: Grant) -> str:
    """Which grant, where, and whose."""
    place = f"bytes {grant.allocation.offset} to {grant.end} of round {grant.allocation.round}"
    return f"grant {grant.alloc_id} ({place}) of room {grant.room.id!r} chunk {grant.chunk}"


def missing_slots(grant: Grant) -> list[WriterSlot]:
    """Writers of whom neither their word nor a proof is there."""
    return [slot for slot in grant.slots.values() if not slot.quiet]


def writer_words(state: DecodeState, slot: WriterSlot) -> str:
    """Who is waited for, and how that one is."""
    session = state.sessions.get(slot.session)
    writer = slot.layout.writer
    place = f"tp {writer.tp_rank} pp {writer.pp_rank}"
    if session is None:
        return f"a writer ({place}) whose session {slot.session} is forgotten"
    silent = seconds(state.now - session.last_received)
    if session.fenced:
        return f"{session_name(session)} ({place}), fenced: {session.fenced_reason}; silent for {silent}"
    return f"{session_name(session)} ({place}), silent for {silent}"


def grant_waits_for(state: DecodeState, grant: Grant) -> str:
    """What has to happen before this grant can end."""
    missing = " and ".join(writer_words(state, slot) for slot in missing_slots(grant))
    if grant.has_copies:
        return "a copy of this side that runs"
    if grant.tainted:
        return f"nothing but the end of the region: {grant.closed_reason}"
    if grant.state is GrantState.CLOSED:
        return f"proof that {missing} cannot write any more"
    if not grant.ready:
        oldest = state.grants.oldest()
        assert oldest is not None, "it is live itself"
        return f"its turn in the ring, which {grant_name(oldest)} holds up"
    return f"the bytes of {missing}"


def frames(state: DecodeState, session: Session) -> str:
    """The last frame each way."""
    heard = _latest(state, session.heard)
    told = _latest(state, session.told)
    sent, seen = session.told_watermark, session.seen
    words = f"last frame from {session_name(session)}: {heard}; last frame to it: {told}"
    words += f"; it was last told watermark ({sent.round}, {sent.tail}) and reports ({seen.round}, {seen.tail})"
    if session.send_failed is not None:
        reason, at = session.send_failed
        words += f"; {plural(session.sends_failed, 'send')} to it failed, the latest {seconds(state.now - at)} ago ({reason})"
    return words


def lease_words(state: DecodeState, session: Session) -> str:
    """How long it may stay silent."""
    if session.fenced:
        return f"{session_name(session)} has no lease: it is fenced"
    left = seconds(fence_in(state, session))
    place = f"session {session.id}, plane {session.answer.plane}"
    return f"{session_name(session)} has {left} left to say something before it is fenced ({place})"


def coming(state: DecodeState, grant: Grant) -> Iterator[Coming]:
    """What will happen to a grant by itself if its missing writers stay silent, in order."""
    may_be_written = grant.ready and missing_slots(grant)
    if grant.has_copies or (grant.state is GrantState.OPEN and not may_be_written):
        return
    if grant.state is GrantState.CLOSED:
        yield from _coming_to_closed(state, grant)
        return
    waited = [state.sessions.current(slot.session) for slot in missing_slots(grant)]
    current = [session for session in waited if session is not None]
    if not current:
        return
    session = min(current, key=lambda candidate: fence_in(state, candidate))
    wait = fence_in(state, session)
    yield Coming(f"{session_name(session)} is fenced unless it says something", wait)
    if session.two_sided:
        yield Coming(f"grant {grant.alloc_id} is released then: on plane {session.answer.plane} only this side writes", wait)
        return
    quarantine = state.settings.quarantine_s
    yield Coming(f"grant {grant.alloc_id} is quarantined then, until it is proven that nobody can write it any more", wait)
    yield Coming("the region is replaced if no proof has come, and unfinished chunks are written again", wait + quarantine)


def _coming_to_closed(state: DecodeState, grant: Grant) -> Iterator[Coming]:
    left = quarantine_left(state, grant)
    if state.stuck_reason:
        yield Coming(f"it is tried again to replace the region, which failed: {state.stuck_reason}", left)
    elif state.replacing:
        yield Coming("the region is being replaced now", 0.0)
    elif left is not None:
        yield Coming("the region is replaced if no proof has come, and unfinished chunks are written again", left)
    if not grant.tainted:
        yield Coming(
            "as soon as the proof comes (its word, its orderly end, the end of its process) the grant is released", None
        )


def room_deadline(state: DecodeState, room: Room) -> Coming | None:
    """When the room fails at the latest."""
    at = state.timers.deadline(TimerKey(TimerKind.ROOM, room=room.id))
    if at is None or room.end is not None:
        return None
    settings = state.settings
    used = room.clock.read(state.run_time)
    cap = room.registered_at + room.deadline_s * settings.room_deadline_cap - state.now
    if room.clock.running_since is None:
        return Coming(f"the room fails at the latest: its clock stands still at {seconds(used)} of {room.deadline_s:g} s", cap)
    return Coming("the room fails if it is not complete", min(cap, room.deadline_s - used))


def _latest(state: DecodeState, frames_at: dict[str, float]) -> str:
    if not frames_at:
        return "none"
    name, at = max(reversed(frames_at.items()), key=lambda entry: entry[1])
    return f"{name} {seconds(state.now - at)} ago"
