"""What those who only look on may ask of a decode daemon: explanations, the ring's history, readiness, a view for people.

Commands like the engine's, carried out on the loop's thread; none of them changes anything.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from itertools import islice
from typing import Any

from decode_service.explaining import Explanation, explain_chunk, explain_ring, explain_room, explain_unserved, waiting_chunks
from decode_service.grants import Grant
from decode_service.history import GrantRecord
from decode_service.rank import DecodeRank
from decode_service.readiness import unready_reasons
from decode_service.snapshot import take_snapshot
from decode_service.state import DecodeState
from protocol.limits import MAX_ROOM_TOKENS
from runtime import engine_fields as fields
from runtime.commands import Command
from runtime.engine_protocol import Body
from runtime.metrics import MAX_LABELLED_PEERS
from runtime.spacetime import Box
from runtime.stall_watch import MAX_LOOKED_AT

VIEW_ROWS = 200
"""Rows of each table of the view; the counts beside them are exact."""
BLOCKED_ROWS = 20


class DecodeObserving:
    """Looks at every rank of one daemon. Every method runs on the loop's thread."""

    def __init__(
        self, ranks: Mapping[int, DecodeRank], clock: Callable[[], float], *, stall_warn_s: float, unready_after_s: float
    ) -> None:
        self._ranks = ranks
        self._clock = clock
        self._stall_warn_s = stall_warn_s
        self._unready_after_s = unready_after_s

    def commands(self) -> Mapping[str, Command]:
        """By the names that are used on the wire."""
        return {
            "explain": self._explain,
            "history": self._history,
            "measure": self._measure,
            "ready": self._ready,
            "watch": self._watch,
        }

    def _explain(self, body: Body) -> Body:
        """Why chunks do not move: those of a room, one of them, or without a room what holds rings up and who is missing."""
        room = fields.optional_identifier(body, "room")
        chunk = fields.integer(body, "chunk", 0, MAX_ROOM_TOKENS) if body.get("chunk") is not None else None
        found: list[Explanation] = []
        for state in self._states(body):
            if room is None:
                found += [*explain_ring(state), *explain_unserved(state)]
            else:
                found += explain_room(state, room, chunk)
        known = [explanation for explanation in found if explanation.state != "unknown"]
        return {"explanations": [explanation.to_map() for explanation in known or found]}

    def _history(self, body: Body) -> Body:
        return {"ranks": [self._drawn(state) for state in self._states(body)]}

    def _measure(self, body: Body) -> Body:
        ranks = []
        for rank in self._ranks.values():
            if rank.handler is not None:
                state = rank.handler.as_of(self._clock())
                shot = take_snapshot(state, MAX_LABELLED_PEERS) | rank.counts() | {"rank": rank.rank}
                shot["grant_states"] = _count(grant.state.value for grant in state.grants)
                shot["fenced_count"] = sum(session.fenced for session in state.sessions.all())
                ranks.append(shot)
        return {"ranks": ranks, "ready": not self._reasons(body)}

    def _ready(self, body: Body) -> Body:
        return {"reasons": self._reasons(body)}

    def _watch(self, body: Body) -> Body:
        """One look at everything, for a page or a terminal."""
        ranks = []
        for rank in self._ranks.values():
            view: dict[str, Any] = {
                "rank": rank.rank,
                "endpoint": rank.control.address,
                "pool_registered": rank.handler is not None,
            }
            if rank.handler is not None:
                state = rank.handler.as_of(self._clock())
                view |= take_snapshot(state, VIEW_ROWS) | {"rank": rank.rank, "blocked": self._blocked(state)}
            ranks.append(view)
        return {"service": "decode", "ranks": ranks, "reasons": self._reasons(body)}

    def _blocked(self, state: DecodeState) -> list[dict[str, object]]:
        """Explanations of what has waited longest, if it has waited too long."""
        waiting = sorted(islice(waiting_chunks(state), MAX_LOOKED_AT), key=lambda entry: entry[1])
        late = [place for place, since in islice(waiting, BLOCKED_ROWS) if state.now - since >= self._stall_warn_s]
        found = []
        for room_id, index in late:
            room = state.rooms.live(room_id)
            if room is not None:
                found.append(explain_chunk(state, room, room.chunks[index]).to_map())
        return found

    def _reasons(self, body: Body) -> list[str]:
        reasons = []
        for rank in self._chosen(body):
            if rank.handler is None:
                reasons.append(f"rank {rank.rank}: no engine has registered a KV pool yet")
            else:
                state = rank.handler.as_of(self._clock())
                reasons += [f"rank {rank.rank}: {reason}" for reason in unready_reasons(state, self._unready_after_s)]
        return reasons

    def _states(self, body: Body) -> Iterator[DecodeState]:
        now = self._clock()
        return (rank.handler.as_of(now) for rank in self._chosen(body) if rank.handler is not None)

    def _chosen(self, body: Body) -> list[DecodeRank]:
        if body.get("rank") is None:
            return list(self._ranks.values())
        return [rank for number, rank in self._ranks.items() if number == fields.rank(body)]

    def _drawn(self, state: DecodeState) -> dict[str, object]:
        settings = state.settings
        return {
            "rank": settings.decode_rank,
            "title": f"{settings.decode_id} rank {settings.decode_rank}: ring of {state.grants.allocator.total_size} bytes",
            "ring_bytes": state.grants.allocator.total_size,
            "now": state.now,
            "boxes": [asdict(box) for box in boxes(state)],
        }


def boxes(state: DecodeState) -> list[Box]:
    """The latest grants of the ring in space and time, those that have ended first."""
    return [*map(_box_of_record, state.history), *map(_box_of_grant, state.grants)]


def _box_of_record(record: GrantRecord) -> Box:
    place = (record.room, record.chunk, record.alloc_id, record.round, record.offset, record.end)
    return Box(*place, record.granted_at, record.ready_at, record.closed_at, record.ended_at, record.outcome.value)


def _box_of_grant(grant: Grant) -> Box:
    place = (grant.room.id, grant.chunk, grant.alloc_id, grant.allocation.round, grant.allocation.offset, grant.end)
    return Box(*place, grant.granted_at, grant.ready_since, grant.closed_at)


def _count(words: Iterator[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for word in words:
        counts[word] = counts.get(word, 0) + 1
    return counts
