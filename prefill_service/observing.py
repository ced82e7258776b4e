"""What those who only look on may ask of a prefill daemon: explanations, readiness, a view for people.

Commands like the engine's, carried out on the loop's thread; none of them changes anything.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

from prefill_service.explaining import (
    Explanation,
    explain_chunk,
    explain_oldest,
    explain_refusals,
    explain_room,
    waiting_chunks,
)
from prefill_service.inspection import snapshot
from prefill_service.rank import PrefillRank
from prefill_service.readiness import unready_reasons
from prefill_service.state import PrefillState
from protocol.limits import MAX_ROOM_TOKENS
from runtime import engine_fields as fields
from runtime.commands import Command
from runtime.engine_protocol import Body
from runtime.stall_watch import MAX_LOOKED_AT

VIEW_ROWS = 200
"""Rows of each table of the view; the counts beside them are exact."""
BLOCKED_ROWS = 20


class PrefillObserving:
    """Looks at every rank of one daemon. Every method runs on the loop's thread."""

    def __init__(
        self,
        ranks: Mapping[int, PrefillRank],
        clock: Callable[[], float],
        *,
        stall_warn_s: float,
        unready_after_s: float,
    ) -> None:
        self._ranks = ranks
        self._clock = clock
        self._stall_warn_s = stall_warn_s
        self._unready_after_s = unready_after_s

    def commands(self) -> Mapping[str, Command]:
        """By the names that are used on the wire."""
        return {
            "explain": self._explain,
            "history": lambda _: {"ranks": []},
            "measure": self._measure,
            "ready": lambda body: {"reasons": self._reasons(body)},
            "watch": self._watch,
        }

    def _explain(self, body: Body) -> Body:
        """Why chunks do not move: those of a room, one of them, or without a room the oldest and every refused subscription."""
        room = fields.optional_identifier(body, "room")
        chunk = fields.integer(body, "chunk", 0, MAX_ROOM_TOKENS) if body.get("chunk") is not None else None
        found: list[Explanation] = []
        for rank, state in self._states(body):
            unsent = rank.unsent()
            if room is None:
                found += [*explain_oldest(state, unsent), *explain_refusals(state, unsent)]
            else:
                found += explain_room(state, room, chunk, unsent)
        known = [explanation for explanation in found if explanation.state != "unknown"]
        return {"explanations": [explanation.to_map() for explanation in known or found]}

    def _measure(self, body: Body) -> Body:
        ranks = []
        for rank, state in self._states({}):
            shot = dict(snapshot(state, VIEW_ROWS, 0)) | rank.counts() | {"rank": rank.rank}
            shot["chunk_states"] = Counter(chunk.state.value for room in state.rooms for chunk in room.open_chunks())
            shot["gated"] = sum(len(peer.session.gate) for peer in state.peers.values() if peer.session is not None)
            shot["peers_current"] = sum(peer.is_current for peer in state.peers.values())
            ranks.append(shot)
        return {"ranks": ranks, "ready": not self._reasons(body)}

    def _watch(self, body: Body) -> Body:  # noqa: ARG002 - a command's signature
        """One look at everything, for a page or a terminal."""
        views: list[dict[str, Any]] = []
        for number, rank in self._ranks.items():
            view: dict[str, Any] = {"rank": number, "pool_registered": rank.handler is not None}
            if rank.handler is not None:
                state = rank.handler.as_of(self._clock())
                view |= {**snapshot(state, VIEW_ROWS, VIEW_ROWS), **rank.counts(), "blocked": self._blocked(rank, state)}
            views.append(view)
        return {"service": "prefill", "ranks": views, "reasons": self._reasons({})}

    def _blocked(self, rank: PrefillRank, state: PrefillState) -> list[dict[str, object]]:
        """Explanations of what has stood still longest, if it has done so for too long."""
        waiting = sorted(islice(waiting_chunks(state), MAX_LOOKED_AT), key=lambda entry: entry[1])
        late = [place for place, since in islice(waiting, BLOCKED_ROWS) if state.now - since >= self._stall_warn_s]
        found, unsent = [], rank.unsent()
        for room_id, peer, index in late:
            room = state.rooms.live(room_id)
            if room is not None:
                found.append(explain_chunk(state, room, room.targets[peer].open[index], unsent).to_map())
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

    def _states(self, body: Body) -> Iterator[tuple[PrefillRank, PrefillState]]:
        now = self._clock()
        return ((rank, rank.handler.as_of(now)) for rank in self._chosen(body) if rank.handler is not None)

    def _chosen(self, body: Body) -> list[PrefillRank]:
        if body.get("rank") is None:
            return list(self._ranks.values())
        return [rank for number, rank in self._ranks.items() if number == fields.rank(body)]
