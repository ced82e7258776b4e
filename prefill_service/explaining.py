"""Why a chunk does not move, as this prefill rank sees it, in plain words and as plain values.

Nothing is remembered for this: an explanation is derived from the machine's state at the moment of the question. What holds a
gate shut lies on the decode side, so those answers say what to ask there.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from prefill_service.chunks import Chunk, ChunkState
from prefill_service.describing import (
    NONE_UNSENT,
    Coming,
    Unsent,
    decode_name,
    due,
    frames,
    lease_words,
    refused,
    room_coming,
    seconds,
    session_coming,
    way_there,
)
from prefill_service.rooms import Room
from prefill_service.sessions import Peer
from prefill_service.state import PrefillState, TimerKey, TimerKind
from protocol.messages import GrantStatus

MAX_EXPLAINED = 32
"""Chunks explained in one answer."""

_ANSWERS = {
    None: "it has not answered",
    GrantStatus.PENDING: "it answered pending: another writer has not asked yet, or its turn in the ring has not come",
    GrantStatus.BUSY: "it answered busy: too many chunks of this session are in flight, or it is draining",
}


@dataclass(slots=True)
class Explanation:
    """One answer. ``state`` is static; ``summary`` is one sentence and ``lines`` are the rest of the story."""

    prefill_id: str
    room: str | None
    chunk: int | None
    peer: str | None
    state: str
    summary: str
    since_s: float | None = None
    """How long it has been in that state."""
    lines: list[str] = field(default_factory=list)
    next: list[Coming] = field(default_factory=list)
    alloc_id: int | None = None

    def to_map(self) -> dict[str, object]:
        """Plain values, for JSON."""
        return {
            "side": "prefill",
            "prefill_id": self.prefill_id,
            "room": self.room,
            "chunk": self.chunk,
            "peer": self.peer,
            "state": self.state,
            "since_s": None if self.since_s is None else round(self.since_s, 3),
            "summary": self.summary,
            "lines": list(self.lines),
            "next": [{"what": step.what, "in_s": round(step.in_s, 3)} for step in self.next],
            "next_words": [str(step) for step in self.next],
            "alloc_id": self.alloc_id,
        }


def waiting_chunks(state: PrefillState) -> Iterator[tuple[tuple[str, str, int], float]]:
    """Every chunk that exists and is not scattered, as (room, decode endpoint, index), with the moment its state began."""
    for room in state.rooms:
        if room.failure is None:
            for chunk in room.open_chunks():
                yield (room.id, chunk.peer, chunk.index), chunk.since


def explain_room(
    state: PrefillState, room_id: str, chunk: int | None = None, unsent: Mapping[str, Unsent] = NONE_UNSENT
) -> list[Explanation]:
    """Explain one chunk of a room on its way to each decode rank, or every chunk that is on its way, or why none is.

    ``unsent``: what could not be sent, by endpoint, as the shell knows.
    """
    room = state.rooms.live(room_id)
    if room is None:
        return [_absent(state, room_id, chunk)]
    found = [open_chunk for open_chunk in room.open_chunks() if chunk in {None, open_chunk.index}]
    if not found:
        return [_nothing_open(state, room, chunk)]
    found.sort(key=lambda candidate: (candidate.since, candidate.index))
    return [explain_chunk(state, room, candidate, unsent) for candidate in found[:MAX_EXPLAINED]]


def explain_refusals(state: PrefillState, unsent: Mapping[str, Unsent] = NONE_UNSENT) -> list[Explanation]:
    """Explain why there is no session, for each decode rank that turned the last subscription away."""
    turned_away = (peer for peer in state.peers.values() if peer.refusal is not None)
    return [_refusal(state, peer, unsent) for peer in islice(turned_away, MAX_EXPLAINED)]


def explain_oldest(state: PrefillState, unsent: Mapping[str, Unsent] = NONE_UNSENT) -> list[Explanation]:
    """Explain the chunk whose state has lasted longest, if there is one."""
    oldest = min(waiting_chunks(state), key=lambda entry: entry[1], default=None)
    if oldest is None:
        return []
    room_id, peer, index = oldest[0]
    room = state.rooms.live(room_id)
    assert room is not None
    return [explain_chunk(state, room, room.targets[peer].open[index], unsent)]


def explain_chunk(state: PrefillState, room: Room, chunk: Chunk, unsent: Mapping[str, Unsent] = NONE_UNSENT) -> Explanation:
    """Explain a chunk that is not scattered."""
    peer = state.peers.get(chunk.peer)
    found = Explanation(state.settings.prefill_id, room.id, chunk.index, chunk.peer, chunk.state.value, "")
    found.since_s = state.now - chunk.since
    head = f"chunk {chunk.index} of room {room.id!r}, {chunk.state.value} for {seconds(found.since_s)},"
    if room.failure is not None:
        found.state = "failed"
        found.summary = f"{head} goes nowhere: its room has failed ({room.failure.code}: {room.failure.message})"
    elif peer is None:
        found.summary = f"{head} has no way to {chunk.peer}: that decode rank was left"
    else:
        _tell(state, found, peer, chunk, head, unsent.get(peer.endpoint))
        _tell_peer(state, found, peer, unsent.get(peer.endpoint))
    found.next += room_coming(state, room)
    return found


def _tell(state: PrefillState, found: Explanation, peer: Peer, chunk: Chunk, head: str, unsent: Unsent | None) -> None:
    """The sentence that says who is waited for, by the state of the chunk."""
    there = decode_name(peer)
    retry = TimerKey(TimerKind.CHUNK, chunk.peer, chunk.room, chunk.index)
    if chunk.grant is not None:
        found.alloc_id = chunk.grant.alloc_id
    match chunk.state:
        case ChunkState.COMPUTED:
            found.summary = f"{head} waits for {way_there(state, peer, unsent)}"
        case ChunkState.REQUESTED | ChunkState.TAINTED:
            answer = _ANSWERS.get(chunk.last_answer, "its answer is on the way")
            found.summary = f"{head} waits for {there} to grant it a place: asked {chunk.backoff.tries} times, {answer}"
            found.next += due(state, retry, "the request is repeated")
            if peer.session is not None and chunk in peer.session.busy:
                others = f"the next of {len(peer.session.busy)} chunks that were turned away as busy ask again"
                found.next += due(state, TimerKey(TimerKind.TURN, chunk.peer), others)
        case ChunkState.GRANTED:
            _tell_granted(state, found, peer, chunk, head)
            found.next += due(state, retry, "the write is tried again")
        case ChunkState.WRITING:
            found.summary = f"{head} is being written here; nothing of the decode side is waited for"
        case _:
            words = f"waits for the verdict of {there}: it needs the other writers' bytes, or verifies and scatters"
            found.summary = f"{head} {words} (announced {chunk.backoff.tries} times)"
            found.next += due(state, retry, "CHUNK_READY is repeated")
    if chunk.write_failures:
        found.lines.append(f"{chunk.write_failures} writes of it failed, limit {state.settings.max_write_failures}")


def _tell_granted(state: PrefillState, found: Explanation, peer: Peer, chunk: Chunk, head: str) -> None:
    assert chunk.grant is not None
    assert peer.session is not None
    grant, there = chunk.grant, decode_name(peer)
    place = f"grant {grant.alloc_id}, bytes {grant.offset} to {grant.end} of round {grant.round}"
    wait = peer.session.gate.explain(grant.round, grant.end)
    if wait is not None:
        found.state = "gated"
        found.summary = f"{head} is held at the gate by the ring of {there}: {place} {wait}"
        found.lines.append(
            f"who holds that ring up: decode-service explain --room {chunk.room} --chunk {chunk.index}, on its host"
        )
    elif chunk in state.writes:
        limit = state.settings.max_writes_in_flight
        found.state = "queued"
        running = state.writes.in_flight[chunk.peer]
        found.summary = f"{head} waits for a write to {there} to end: {running} run, limit {limit} ({place})"
    else:
        found.summary = f"{head} waits before it is written again ({place})"


def _tell_peer(state: PrefillState, found: Explanation, peer: Peer, unsent: Unsent | None) -> None:
    found.lines.append(frames(state, peer, unsent))
    session = peer.session
    if session is not None:
        found.lines.append(lease_words(state, session))
        if session.draining:
            found.lines.append(f"{decode_name(peer)} is draining: it grants nothing new")
    found.next += session_coming(state, peer)


def _refusal(state: PrefillState, peer: Peer, unsent: Mapping[str, Unsent]) -> Explanation:
    words = f"{decode_name(peer)} gives no session: {refused(peer)}"
    found = Explanation(state.settings.prefill_id, None, None, peer.endpoint, "refused", words)
    _tell_peer(state, found, peer, unsent.get(peer.endpoint))
    return found


def _absent(state: PrefillState, room_id: str, chunk: int | None) -> Explanation:
    result = state.rooms.result(room_id)
    code = getattr(result, "code", None)
    if result is None:
        name, words = "unknown", f"room {room_id!r} is not known here: no engine has submitted anything of it to this rank"
    elif code is None:
        name, words = "done", f"room {room_id!r} is complete: nothing is waited for"
    else:
        name, words = "failed", f"room {room_id!r} has failed ({code}: {getattr(result, 'message', '')})"
    return Explanation(state.settings.prefill_id, room_id, chunk, None, name, words)


def _nothing_open(state: PrefillState, room: Room, chunk: int | None) -> Explanation:
    if chunk is not None and chunk < room.offered:
        name, words = "scattered", f"chunk {chunk} of room {room.id!r} is scattered wherever it goes: nothing is waited for"
    else:
        progress = f"{room.tokens} tokens, {room.offered} chunks so far, {seconds(state.now - room.progress_at)} ago"
        name, words = "not_computed", f"room {room.id!r} waits for the prefill engine to submit more ({progress})"
    found = Explanation(state.settings.prefill_id, room.id, chunk, None, name, words, state.now - room.progress_at)
    found.next += room_coming(state, room)
    return found
