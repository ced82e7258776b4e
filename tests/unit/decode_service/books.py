"""What must be true of a decode machine between any two verbs: each derived fact agrees with what it is derived from."""

from collections import Counter
from collections.abc import Collection

from decode_service.grants import Grant, GrantState
from decode_service.handler import DecodeStagingHandler
from decode_service.state import DecodeState, TimerKind
from protocol.watermark import is_watermark_ready


def check_books(handler: DecodeStagingHandler, extra_subscribers: Collection[str] = ()) -> None:
    """Assert all of it. ``extra_subscribers`` were registered for watermarks without a session."""
    state = handler.state
    assert state.out == []
    check_ring(state)
    check_grants(state)
    check_rooms(state)
    check_sessions(state, set(extra_subscribers))
    check_timers(handler)


def check_ring(state: DecodeState) -> None:
    """Grants and allocator agree; ready grants share no byte; an empty ring starts at zero."""
    allocator = state.grants.allocator
    grants = list(state.grants)
    watermark = allocator.get_watermark()
    assert allocator.live_count == len(grants)
    if not grants:
        assert allocator.head == 0
        assert watermark == (allocator.round, 0)
    else:
        assert next(iter(grants)).ready, "the oldest live grant is always ready"
    for grant in grants:
        assert grant.ready == is_watermark_ready(watermark, grant.allocation.round, grant.end)
        assert 0 <= grant.allocation.offset < grant.end <= allocator.total_size
    owners = Counter(byte for grant in grants if grant.ready for byte in range(grant.allocation.offset, grant.end))
    assert max(owners.values(), default=1) == 1
    assert set(state.grants._unready) == {grant.alloc_id for grant in grants if not grant.ready}


def check_grants(state: DecodeState) -> None:
    """Slices tile the grant; nothing releasable is kept; each chunk has at most one grant that is not closed."""
    active = Counter((grant.room.id, grant.chunk) for grant in state.grants if grant.state is not GrantState.CLOSED)
    assert max(active.values(), default=1) == 1
    for grant in state.grants:
        assert not grant.ended
        assert not grant.is_releasable
        assert grant.scatter_running == (grant.state is GrantState.SCATTERING)
        at = 0
        for writer, slot in grant.slots.items():
            assert (slot.layout.writer, slot.offset) == (writer, at)
            at += slot.num_bytes
        assert at == grant.num_bytes
        if grant.state is GrantState.SCATTERING:
            assert all(slot.ready is not None and slot.copies == 0 for slot in grant.slots.values())
        check_chunk_of(state, grant)
    for grant in state.retired_grants.values():
        assert grant.has_copies, "a grant of a former region is kept for our own copies only"
        assert not grant.ended
        assert grant.state is not GrantState.OPEN


def check_chunk_of(state: DecodeState, grant: Grant) -> None:
    """A grant belongs to its chunk while the room lives, unless it is tainted or its room has failed."""
    room = state.rooms.live(grant.room.id)
    if room is grant.room and not grant.tainted:
        assert room.chunks[grant.chunk].grant is grant
    if grant.state is GrantState.OPEN:
        assert room is grant.room
        assert room.end is None


def check_rooms(state: DecodeState) -> None:
    """Counts per room agree with the grants; requests come from current sessions; what is over is not live."""
    grants = [*state.grants, *state.retired_grants.values()]
    for room in {grant.room for grant in grants} | set(state.rooms):
        mine = [grant for grant in grants if grant.room is room]
        assert room.granted == len(mine)
        assert room.granted_ready == sum(grant.ready for grant in mine)
        assert room.copies == sum(g.scatter_running + sum(slot.copies for slot in g.slots.values()) for g in mine)
        assert room.remaining == room.scattered.count(0)
    for room in state.rooms:
        assert state.rooms.over(room.id) is None
        assert room.remaining > 0
        assert (room.copies > 0) if room.end is not None else True
        for chunk in room.chunks.values():
            assert not room.scattered[chunk.index]
            assert not (chunk.asked and chunk.grant)
            if room.end is None:
                for writer, session_id in chunk.asked.items():
                    session = state.sessions.current(session_id)
                    assert session is not None
                    assert session.writer == writer
                    assert (room.id, chunk.index) in session.open_chunks


def check_sessions(state: DecodeState, extra: set[str]) -> None:
    """Each session knows exactly its grants without proof; only such a fenced one is remembered."""
    known = {session.id: session for session in state.sessions.all()}
    current = {session.id for session in state.sessions.all_current()}
    assert current == {session.id for session in known.values() if not session.fenced}
    for grant in state.grants:
        for slot in grant.slots.values():
            assert slot.quiet or slot.session in known
    for session in known.values():
        mine = {g.alloc_id for g in state.grants for s in g.slots.values() if s.session == session.id and not s.quiet}
        assert set(session.unwritten) == mine
        assert (mine and not session.open_chunks) or not session.fenced
        for room_id, index in session.open_chunks:
            room = state.rooms.live(room_id)
            assert room is not None
            assert index in room.chunks
    assert set(state.routes) == set(known) | extra
    fanout = state.fanout
    assert {session for session in known if session in fanout} == current
    assert len(fanout) == len(current) + len(extra)
    assert set(fanout._waiting) == {session for session in current if known[session].unwritten}


def check_timers(handler: DecodeStagingHandler) -> None:
    """A deadline exists for exactly what still needs one."""
    state = handler.state
    keys = set(state.timers._deadline)
    closed = {("", "", grant.alloc_id) for grant in state.grants if grant.state is GrantState.CLOSED}
    by_kind = {kind: {key[1:] for key in keys if key.kind is kind} for kind in TimerKind}
    assert by_kind[TimerKind.LEASE] == {(session.id, "", 0) for session in state.sessions.all_current()}
    assert by_kind[TimerKind.QUIET] == {(session.id, "", 0) for session in state.sessions.all() if session.fenced}
    assert by_kind[TimerKind.ABORT] == {(*key, 0) for key in handler._closing.aborting.pending}
    assert by_kind[TimerKind.ROOM] == {("", room.id, 0) for room in state.rooms if room.end is None}
    assert by_kind[TimerKind.QUARANTINE] <= closed if state.replacing else by_kind[TimerKind.QUARANTINE] == closed
    parked = {(session, room, chunk) for session, mine in state.parking._by_session.items() for room, chunk in mine}
    assert by_kind[TimerKind.PARK] == parked
    assert {(s, r, c) for r, items in state.parking._by_room.items() for s, c in items} == parked
    known = {session.id for session in state.sessions.all()}
    assert {session for session, _ in handler._closing.aborting.pending} <= known
    assert {session for session, _, _ in parked} <= {session.id for session in state.sessions.all_current()}
