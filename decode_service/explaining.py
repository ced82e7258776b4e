"""Why a chunk does not move, as this decode rank sees it, in plain words and as plain values.

Nothing is remembered for this: an explanation is derived from the machine's state at the moment of the question. Its first
sentence says which side is waited for; the rest says since when, what it takes, who holds the ring, and what comes next.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from decode_service.describing import (
    Coming,
    coming,
    fence_in,
    frames,
    grant_name,
    grant_waits_for,
    lease_words,
    missing_slots,
    plural,
    room_deadline,
    seconds,
    session_name,
)
from decode_service.grants import Grant, GrantState
from decode_service.rooms import Chunk, Room
from decode_service.sessions import Session
from decode_service.state import DecodeState
from protocol.layout import WriterKey

MAX_EXPLAINED = 32
"""Chunks explained in one answer."""


@dataclass(slots=True)
class Explanation:
    """One answer. ``state`` is static; ``summary`` is one sentence and ``lines`` are the rest of the story."""

    rank: int
    room: str
    chunk: int | None
    state: str
    summary: str
    since_s: float | None = None
    """How long it has been in that state."""
    lines: list[str] = field(default_factory=list)
    next: list[Coming] = field(default_factory=list)
    prefills: list[str] = field(default_factory=list)
    """Whom it waits for, by ``prefill_id``."""
    alloc_id: int | None = None
    oldest_alloc_id: int | None = None

    def to_map(self) -> dict[str, object]:
        """Plain values, for JSON."""
        return {
            "side": "decode",
            "rank": self.rank,
            "room": self.room,
            "chunk": self.chunk,
            "state": self.state,
            "since_s": None if self.since_s is None else round(self.since_s, 3),
            "summary": self.summary,
            "lines": list(self.lines),
            "next": [{"what": step.what, "in_s": None if step.in_s is None else round(step.in_s, 3)} for step in self.next],
            "next_words": [str(step) for step in self.next],
            "waits_for_prefills": list(self.prefills),
            "alloc_id": self.alloc_id,
            "oldest_alloc_id": self.oldest_alloc_id,
        }


def waiting_chunks(state: DecodeState) -> Iterator[tuple[tuple[str, int], float]]:
    """Every chunk that somebody asked for and that is not scattered, with the moment since when."""
    for room in state.rooms:
        for chunk in room.chunks.values():
            yield (room.id, chunk.index), chunk.since


def explain_room(state: DecodeState, room_id: str, chunk: int | None = None) -> list[Explanation]:
    """Explain one chunk of a room, or every chunk of it that is on its way, or why none is."""
    room = state.rooms.live(room_id)
    if room is None:
        return [_absent(state, room_id, chunk)]
    if chunk is not None:
        return [_explain_index(state, room, chunk)]
    if not room.chunks:
        return [_nothing_asked(state, room)]
    oldest_first = sorted(room.chunks.values(), key=lambda candidate: (candidate.since, candidate.index))
    return [explain_chunk(state, room, candidate) for candidate in oldest_first[:MAX_EXPLAINED]]


def explain_ring(state: DecodeState) -> list[Explanation]:
    """Explain what holds the ring up: its oldest grant, if there is one."""
    oldest = state.grants.oldest()
    if oldest is None:
        return []
    chunk = oldest.room.chunks.get(oldest.chunk)
    if chunk is not None and chunk.grant is oldest:
        return [explain_chunk(state, oldest.room, chunk)]
    found = _new(state, oldest.room.id, oldest.chunk, "quarantined", "")
    _tell_grant(state, found, oldest)
    return [found]


def explain_unserved(state: DecodeState) -> list[Explanation]:
    """Explain, for each prefill group of which nobody is subscribed, the oldest room that has no way to move without it."""
    waiting: dict[str, list[Room]] = {}
    for room in state.rooms:
        if room.end is None and not room.chunks:
            waiting.setdefault(room.group, []).append(room)
    unserved = (rooms for group, rooms in waiting.items() if not _writers_of(state, group))
    found = []
    for rooms in islice(unserved, MAX_EXPLAINED):
        explanation = _nothing_asked(state, rooms[0])
        if len(rooms) > 1:
            explanation.lines.append(f"behind it: {plural(len(rooms) - 1, 'room')} registered later")
        found.append(explanation)
    return found


def explain_chunk(state: DecodeState, room: Room, chunk: Chunk) -> Explanation:
    """Explain a chunk that was asked for and is not scattered."""
    found = _new(state, room.id, chunk.index, "requested", "")
    if chunk.grant is None:
        _tell_request(state, found, room, chunk)
    else:
        _tell_grant(state, found, chunk.grant)
    if room.end is not None:
        found.lines.append(
            f"the room has failed ({room.end.code}: {room.end.message}) and waits for copies of this side to end"
        )
    _tell_ring(state, found, chunk.grant)
    if (deadline := room_deadline(state, room)) is not None:
        found.next.append(deadline)
    return found


def _explain_index(state: DecodeState, room: Room, index: int) -> Explanation:
    chunk = room.chunks.get(index)
    if chunk is not None:
        return explain_chunk(state, room, chunk)
    if not 0 <= index < len(room.scattered):
        last = len(room.scattered) - 1
        return _new(state, room.id, index, "absent", f"room {room.id!r} has chunks 0 to {last}, and no chunk {index}")
    if room.scattered[index]:
        return _new(
            state, room.id, index, "scattered", f"chunk {index} of room {room.id!r} is in its pages: nothing is waited for"
        )
    found = _nothing_asked(state, room)
    found.chunk = index
    return found


def _absent(state: DecodeState, room_id: str, chunk: int | None) -> Explanation:
    end = state.rooms.over(room_id)
    if end is not None:
        words = "is complete: nothing is waited for" if end.done else f"has failed ({end.code}: {end.message})"
        return _new(state, room_id, chunk, "done" if end.done else "failed", f"room {room_id!r} {words}")
    parked = state.parking.waiting_for(room_id)
    if not parked:
        text = f"room {room_id!r} is not known here: no engine has registered it, and no prefill has asked for it"
        return _new(state, room_id, chunk, "unknown", text)
    sessions = [state.sessions.current(session) for session, _ in parked]
    names = ", ".join(sorted({session_name(session) for session in sessions if session is not None}))
    asked = f"{names} asked for {plural(len(parked), 'chunk')}"
    text = f"room {room_id!r} waits for the decode engine, which has not registered it; {asked}"
    found = _new(state, room_id, chunk, "parked", text)
    found.next.append(
        Coming(f"each request is refused {state.settings.park_s:g} s after it came, and its room fails there", None)
    )
    return found


def _nothing_asked(state: DecodeState, room: Room) -> Explanation:
    """Nobody has asked for anything that is not there already: the prefill is waited for."""
    arrived = len(room.scattered) - room.remaining
    progress = f"{arrived} of {len(room.scattered)} chunks are in their pages"
    sessions = _writers_of(state, room.group)
    if sessions:
        names = ", ".join(session_name(session) for session in sessions)
        text = f"room {room.id!r} waits for its prefill to ask for the next chunk ({names}); {progress}"
    else:
        text = f"room {room.id!r} waits for prefill group {room.group!r}, of which nobody is subscribed here; {progress}"
        text += f", registered {seconds(state.now - room.registered_at)} ago"
    found = _new(state, room.id, None, "not_requested", text)
    found.since_s = state.now - room.registered_at
    found.prefills = [session.request.prefill_id for session in sessions]
    found.lines += [line for session in sessions for line in _of_session(state, session)]
    if (deadline := room_deadline(state, room)) is not None:
        found.next.append(deadline)
    return found


def _tell_request(state: DecodeState, found: Explanation, room: Room, chunk: Chunk) -> None:
    """It has no grant: some writers have not asked, or all have and the ring is not theirs yet."""
    found.since_s = state.now - chunk.since
    head = f"chunk {chunk.index} of room {room.id!r}, asked for {seconds(found.since_s)} ago,"
    missing = [layout.writer for layout in room.writers if layout.writer not in chunk.asked]
    if not missing:
        found.state = "waits_for_turn"
        horizon = round(state.settings.grant_horizon * state.grants.allocator.total_size)
        held = f"{state.grants.live_bytes} of at most {horizon} bytes are granted"
        found.summary = f"{head} waits for its turn: every writer has asked, and others hold the ring ({held})"
        return
    found.summary = (
        f"{head} waits for {_writers(state, room, missing)} to ask: a place is granted when every writer has its bytes"
    )
    found.lines.append(f"{plural(len(chunk.asked), 'writer')} of {len(room.writers)} asked")
    for writer in missing:
        session = state.sessions.of_writer(room.group, writer)
        if session is not None:
            found.prefills.append(session.request.prefill_id)
            found.lines += _of_session(state, session)
            found.next.append(Coming(f"{session_name(session)} is fenced unless it says something", fence_in(state, session)))


def _tell_grant(state: DecodeState, found: Explanation, grant: Grant) -> None:
    """It has a place in the ring."""
    found.alloc_id = grant.alloc_id
    granted_s = state.now - grant.granted_at
    found.state, since = _grant_state(grant)
    found.since_s = state.now - since
    found.summary = f"{grant_name(grant)} waits for {grant_waits_for(state, grant)}; granted {seconds(granted_s)} ago"
    if grant.state is GrantState.CLOSED:
        found.lines.append(f"quarantined {seconds(found.since_s)} ago: {grant.closed_reason}")
    watermark = state.grants.allocator.get_watermark()
    gate = f"open for {seconds(state.now - grant.ready_since)}" if grant.ready_since is not None else "shut"
    needs = (
        f"needs watermark ({grant.allocation.round - 1}, {grant.end}) or a later one"
        if grant.allocation.round
        else "needs none"
    )
    found.lines.append(f"its gate {needs}; the ring's is ({watermark.round}, {watermark.tail}): {gate}")
    missing = missing_slots(grant)
    found.lines.append(
        f"{len(grant.slots) - len(missing)} of its {plural(len(grant.slots), 'writer')} wrote or can write no more"
    )
    for slot in missing:
        session = state.sessions.get(slot.session)
        if session is not None:
            found.prefills.append(session.request.prefill_id)
            found.lines += _of_session(state, session)
    found.next += coming(state, grant)


def _tell_ring(state: DecodeState, found: Explanation, own: Grant | None) -> None:
    """Who holds the ring up."""
    if state.replacing:
        found.lines.append("the region is being replaced: nothing new is granted until then")
    if state.draining:
        found.lines.append("this decode rank is draining: nothing new is granted")
    oldest = state.grants.oldest()
    if oldest is None:
        found.lines.append("the ring is empty")
        return
    found.oldest_alloc_id = oldest.alloc_id
    if oldest is own:
        found.lines.append("it is the oldest grant of the ring: everything behind it waits for it")
        return
    age, waits_for = seconds(state.now - oldest.granted_at), grant_waits_for(state, oldest)
    found.lines.append(f"the oldest grant of the ring is {grant_name(oldest)}, granted {age} ago; it waits for {waits_for}")
    if own is None or not own.ready:
        found.next += [Coming(f"{step.what} (the oldest grant)", step.in_s) for step in coming(state, oldest)]


def _grant_state(grant: Grant) -> tuple[str, float]:
    if grant.state is GrantState.CLOSED:
        return "quarantined", grant.closed_at or grant.granted_at
    if grant.state is GrantState.SCATTERING:
        return "scattering", grant.written_at or grant.granted_at
    return ("writing", grant.ready_since) if grant.ready_since is not None else ("gated", grant.granted_at)


def _writers(state: DecodeState, room: Room, writers: list[WriterKey]) -> str:
    words = []
    for writer in writers:
        session = state.sessions.of_writer(room.group, writer)
        who = f"writer tp {writer.tp_rank} pp {writer.pp_rank} of group {room.group!r}, which is not subscribed"
        words.append(who if session is None else session_name(session))
    return " and ".join(words)


def _writers_of(state: DecodeState, group: str) -> list[Session]:
    """Who of that prefill group has bytes for this rank."""
    return [session for session in state.sessions.of_group(group) if session.slice.token_bytes]


def _of_session(state: DecodeState, session: Session) -> list[str]:
    lines = [frames(state, session), lease_words(state, session)]
    if session.blocked is not None:
        blocked = session.blocked
        needs = f"(round {blocked.round}, end {blocked.end}, waited {seconds(blocked.waited_s)})"
        lines.append(
            f"{session_name(session)} itself said it is blocked on room {blocked.room!r} chunk {blocked.chunk} {needs}"
        )
    return lines


def _new(state: DecodeState, room: str, chunk: int | None, name: str, summary: str) -> Explanation:
    return Explanation(state.settings.decode_rank, room, chunk, name, summary)
