"""The decode machine as plain values: what ``inspect`` answers, and what every "why does it not move" is derived from.

Ages are seconds at the time of the machine's last verb. Lists are cut at ``MAX_ROWS``; the counts beside them are exact.
"""

from itertools import islice

from decode_service.grants import Grant, GrantState
from decode_service.rooms import Room
from decode_service.sessions import Session
from decode_service.state import DecodeState

MAX_ROWS = 1000


def take_snapshot(state: DecodeState, rows: int = MAX_ROWS) -> dict[str, object]:
    """Describe one decode rank with at most ``rows`` of everything. Values are numbers, strings, lists and maps only."""
    allocator = state.grants.allocator
    watermark = allocator.get_watermark()
    oldest = state.grants.oldest()
    return {
        "decode_id": state.settings.decode_id,
        "decode_rank": state.settings.decode_rank,
        "epoch": f"{state.settings.epoch:016x}",
        "draining": state.draining,
        "replacing": state.replacing,
        "stuck_reason": state.stuck_reason,
        "ring": {
            "total_bytes": allocator.total_size,
            "round": allocator.round,
            "head": allocator.head,
            "watermark": [watermark.round, watermark.tail],
            "watermark_age_s": None if state.watermark_moved_at is None else round(state.now - state.watermark_moved_at, 3),
            "live_grants": len(state.grants),
            "live_bytes": state.grants.live_bytes,
            "oldest_grant": _grant(state, oldest) if oldest is not None else None,
        },
        "grants": [_grant(state, grant) for grant in islice(state.grants, rows)],
        "sessions": [_session(state, session) for session in islice(state.sessions.all(), rows)],
        "session_count": len(state.sessions),
        "rooms": [_room(state, room) for room in islice(state.rooms, rows)],
        "room_count": len(state.rooms),
        "tombstones": state.rooms.tombstone_count,
        "waiting_turns": len(state.turns),
        "parked_requests": len(state.parking),
        "watermarks_owed": state.fanout.owed_count,
        "counters": dict(state.counters),
    }


def _grant(state: DecodeState, grant: Grant) -> dict[str, object]:
    return {
        "alloc_id": grant.alloc_id,
        "room": grant.room.id,
        "chunk": grant.chunk,
        "round": grant.allocation.round,
        "offset": grant.allocation.offset,
        "end": grant.end,
        "state": grant.state.value,
        "quarantined": grant.state is GrantState.CLOSED,
        "ready": grant.ready,
        "tainted": grant.tainted,
        "scatter_running": grant.scatter_running,
        "copies": sum(slot.copies for slot in grant.slots.values()),
        "age_s": round(state.now - grant.granted_at, 3),
        "closed_reason": grant.closed_reason,
        "writers": [
            {"tp_rank": writer.tp_rank, "pp_rank": writer.pp_rank, "session": slot.session, "quiet": slot.quiet}
            for writer, slot in grant.slots.items()
        ],
    }


def _session(state: DecodeState, session: Session) -> dict[str, object]:
    blocked = session.blocked
    return {
        "session": session.id,
        "prefill_id": session.request.prefill_id,
        "group": session.group,
        "tp_rank": session.writer.tp_rank,
        "pp_rank": session.writer.pp_rank,
        "plane": session.answer.plane,
        "fenced": session.fenced,
        "fenced_reason": session.fenced_reason,
        "silent_s": round(state.now - session.last_received, 3),
        "lease_left_s": round(state.settings.lease_s + state.settings.grace_s - (state.now - session.last_received), 3),
        "seen": [session.seen.round, session.seen.tail],
        "told_watermark": [session.told_watermark.round, session.told_watermark.tail],
        "heard_s_ago": {frame: round(state.now - at, 3) for frame, at in session.heard.items()},
        "sent_s_ago": {frame: round(state.now - at, 3) for frame, at in session.told.items()},
        "sends_failed": session.sends_failed,
        "unwritten_grants": len(session.unwritten),
        "chunks_in_flight": len(session.open_chunks),
        "blocked": None
        if blocked is None
        else {
            "room": blocked.room,
            "chunk": blocked.chunk,
            "round": blocked.round,
            "end": blocked.end,
            "waited_s": blocked.waited_s,
        },
    }


def _room(state: DecodeState, room: Room) -> dict[str, object]:
    return {
        "room": room.id,
        "group": room.group,
        "chunks": len(room.scattered),
        "chunks_scattered": len(room.scattered) - room.remaining,
        "copies": room.copies,
        "granted": room.granted,
        "failed": room.end.code if room.end is not None else "",
        "clock_s": round(room.clock.read(state.run_time), 3),
        "deadline_s": room.deadline_s,
        "open_chunks": [
            {
                "chunk": chunk.index,
                "asked": [list(writer) for writer in chunk.asked],
                "missing": [list(layout.writer) for layout in room.writers if layout.writer not in chunk.asked]
                if chunk.grant is None
                else [],
                "alloc_id": chunk.grant.alloc_id if chunk.grant is not None else None,
                "rewrites": chunk.rewrites,
            }
            for chunk in islice(room.chunks.values(), MAX_ROWS)
        ],
    }
