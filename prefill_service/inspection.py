"""The machine's memory as plain data: what every room, chunk and session waits for, and since when."""

from collections.abc import Mapping
from itertools import islice
from typing import Any

from prefill_service.chunks import Chunk
from prefill_service.rooms import Room, Target
from prefill_service.sessions import Peer, Session
from prefill_service.state import PrefillState

Snapshot = Mapping[str, Any]
"""JSON-able. Times are seconds before now; ``None`` where nothing happened yet."""


def snapshot(state: PrefillState, peers: int | None = None, rooms: int | None = None) -> Snapshot:
    """Everything an operator may ask about: peers with their sessions, rooms with their open chunks, writes, counters.

    ``peers`` and ``rooms`` bound how many of each are listed; the counts beside them are exact.
    """
    settings = state.settings
    return {
        "prefill_id": settings.prefill_id,
        "group": settings.group,
        "incarnation": settings.incarnation,
        "draining": state.draining,
        "over": None if state.over is None else {"code": state.over[0], "message": state.over[1]},
        "peers": [_peer(state, peer) for peer in islice(state.peers.values(), peers)],
        "peer_count": len(state.peers),
        "rooms": [_room(state, room) for room in islice(state.rooms, rooms)],
        "room_count": len(state.rooms),
        "writes": {
            "running": len(state.writes.running),
            "queued": len(state.writes),
            "limit": settings.max_writes_in_flight,
        },
        "counters": dict(state.counters),
    }


def _peer(state: PrefillState, peer: Peer) -> Snapshot:
    return {
        "endpoint": peer.endpoint,
        "state": peer.state.value,
        "leaving": peer.leaving,
        "attempt": peer.attempt,
        "attempt_sent_s_ago": state.now - peer.attempt_sent,
        "refusal": None if peer.refusal is None else {"code": peer.refusal.code, "message": peer.refusal.message},
        "failed_planes": dict(peer.failed_planes),
        "session": None if peer.session is None else _session(state, peer.session),
        "lost_sessions": [{"session": old.id, "running_writes": len(old.running)} for old in peer.ended.values()],
        "unacknowledged_aborts": sorted(peer.aborts),
        "heard_s_ago": {name: state.now - at for name, at in peer.heard.items()},
        "sent_s_ago": {name: state.now - at for name, at in peer.sent.items()},
    }


def _session(state: PrefillState, session: Session) -> Snapshot:
    terms = session.terms
    return {
        "session": session.id,
        "decode_id": terms.decode_id,
        "decode_rank": terms.decode_rank,
        "epoch": terms.epoch,
        "plane": terms.plane,
        "plane_state": session.plane.value,
        "draining": session.draining,
        "watermark": list(session.gate.watermark),
        "lease_left_s": session.lease_until - state.now,
        "unanswered_heartbeats": len(session.unanswered),
        "gated": len(session.gate),
        "next_probe_in_s": None if session.probe_at is None else session.probe_at - state.now,
        "running_writes": len(session.running),
        "token_bytes": session.share.token_bytes,
    }


def _room(state: PrefillState, room: Room) -> Snapshot:
    return {
        "room": room.id,
        "tokens": room.tokens,
        "finished": room.finished,
        "chunks_offered": room.offered,
        "age_s": state.now - room.submitted_at,
        "progress_s_ago": state.now - room.progress_at,
        "failure": None if room.failure is None else {"code": room.failure.code, "message": room.failure.message},
        "targets": [_target(state, target) for target in room.targets.values()],
    }


def _target(state: PrefillState, target: Target) -> Snapshot:
    return {
        "peer": target.peer,
        "scattered": target.created - len(target.open),
        "owes_nothing": target.owes_nothing,
        "running_writes": len(target.running),
        "aborts_unanswered": len(target.acks_owed),
        "chunks": [_chunk(state, chunk) for chunk in target.open.values()],
    }


def _chunk(state: PrefillState, chunk: Chunk) -> Snapshot:
    session, grant = state.session_of(chunk.peer), chunk.grant
    wait = session.gate.explain(grant.round, grant.end) if session is not None and grant is not None else None
    return {
        "chunk": chunk.index,
        "state": chunk.state.value,
        "state_s": state.now - chunk.since,
        "last_answer": None if chunk.last_answer is None else chunk.last_answer.value,
        "grant": None if grant is None else {"alloc_id": grant.alloc_id, "round": grant.round, "end": grant.end},
        "attempt": chunk.attempt,
        "queued": chunk in state.writes,
        "gate": None if wait is None else {"needs": list(wait.needs), "has": list(wait.has)},
        "retries": chunk.backoff.tries,
        "write_failures": chunk.write_failures,
    }
