"""Proof, from what both daemons say of themselves, that a deployment will never move again.

A staged transfer moves by writes, verdicts and messages. It is *stalled* when none is left that could happen:

1. every chunk in flight is granted, and its session's gate refuses it; no chunk is asked for, written or waits for a verdict;
2. the decode ranks know exactly these grants, none of them being copied, so no message about a chunk is on its way;
3. every session has heard the largest watermark that it was ever told, and no rank owes one, so none is on its way either;
4. a watermark changes only when a grant is freed, a grant is freed only when it was written, and by 1 none is written.

Where repair is on a session learns the true watermark sooner or later; then the chunks must be refused under that one as well.
Nothing here looks at a clock.
"""

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from protocol.watermark import START, Watermark, is_watermark_ready

Snapshot = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class BlockedChunk:
    """A granted chunk that its gate refuses: what it needs, what its session believes, and what the ring's watermark is."""

    room: str
    chunk: int
    prefill_id: str
    decode_rank: int
    alloc_id: int
    round: int
    end: int
    believed: Watermark
    true: Watermark

    def __str__(self) -> str:
        needs = f"needs watermark ({self.round - 1}, {self.end}) or a later round"
        return (
            f"{self.room} chunk {self.chunk} on decode rank {self.decode_rank} {needs}; "
            f"{self.prefill_id} believes {tuple(self.believed)}, the ring's watermark is {tuple(self.true)}"
        )


def find_stall(
    decode: Sequence[Snapshot], prefill: Sequence[Snapshot], rooms: AbstractSet[str], *, repair: bool
) -> tuple[BlockedChunk, ...] | None:
    """The chunks on which everything waits for ever, by decode rank and oldest first; ``None`` if anything may still happen.

    ``decode`` must have been taken before ``prefill``; ``rooms`` are those that the engines have in flight.
    """
    if not all(_decode_is_quiet(rank) for rank in decode) or not all(_prefill_is_quiet(rank) for rank in prefill):
        return None
    if rooms != {room["room"] for rank in prefill for room in rank["rooms"]}:
        return None
    told = {session: Watermark(*watermark) for rank in decode for session, watermark in rank["told"].items()}
    if not all(_has_heard_all(session, told) for session in _sessions(prefill)):
        return None
    blocked = tuple(sorted(_blocked_chunks(decode, prefill), key=lambda chunk: (chunk.decode_rank, chunk.round, chunk.end)))
    granted = {(rank["decode_rank"], grant["alloc_id"]) for rank in decode for grant in rank["grants"]}
    if not blocked or {(chunk.decode_rank, chunk.alloc_id) for chunk in blocked} != granted:
        return None
    if repair and any(is_watermark_ready(chunk.true, chunk.round, chunk.end) for chunk in blocked):
        return None
    return blocked


def rings_are_empty(decode: Sequence[Snapshot]) -> bool:
    """Whether no decode rank has a live grant."""
    return all(rank["ring"]["live_grants"] == 0 for rank in decode)


def _decode_is_quiet(rank: Snapshot) -> bool:
    grants_rest = all(
        grant["state"] == "open" and not grant["scatter_running"] and not grant["copies"] for grant in rank["grants"]
    )
    return grants_rest and not rank["parked_requests"] and not rank["watermarks_owed"]


def _prefill_is_quiet(rank: Snapshot) -> bool:
    return (
        not rank["writes"]["running"]
        and not rank["writes"]["queued"]
        and all(_peer_is_quiet(peer) for peer in rank["peers"])
        and all(_room_is_quiet(room) for room in rank["rooms"])
    )


def _peer_is_quiet(peer: Snapshot) -> bool:
    opened = peer["session"] is not None and peer["session"]["plane_state"] == "open"
    return peer["state"] == "current" and opened and not peer["lost_sessions"] and not peer["unacknowledged_aborts"]


def _room_is_quiet(room: Snapshot) -> bool:
    return (
        room["finished"]
        and room["failure"] is None
        and all(
            target["owes_nothing"] or target["scattered"] + len(target["chunks"]) == room["chunks_offered"]
            for target in room["targets"]
        )
    )


def _sessions(prefill: Sequence[Snapshot]) -> Iterator[Snapshot]:
    return (peer["session"] for rank in prefill for peer in rank["peers"])


def _has_heard_all(session: Snapshot, told: Mapping[str, Watermark]) -> bool:
    return Watermark(*session["watermark"]) == told.get(session["session"], START)


def _blocked_chunks(decode: Sequence[Snapshot], prefill: Sequence[Snapshot]) -> Iterator[BlockedChunk]:
    """Every open chunk; one that is not granted and refused has an ``alloc_id`` that no grant has, so the sets differ."""
    true = {rank["decode_rank"]: Watermark(*rank["ring"]["watermark"]) for rank in decode}
    for rank in prefill:
        sessions = {peer["endpoint"]: peer["session"] for peer in rank["peers"]}
        for room in rank["rooms"]:
            for target in room["targets"]:
                session = sessions[target["peer"]]
                for chunk in target["chunks"]:
                    refused = chunk["state"] == "granted" and chunk["gate"] is not None
                    grant = chunk["grant"] if refused else {"alloc_id": -1, "round": 0, "end": 0}
                    yield BlockedChunk(
                        room=room["room"],
                        chunk=chunk["chunk"],
                        prefill_id=rank["prefill_id"],
                        decode_rank=session["decode_rank"],
                        **grant,
                        believed=Watermark(*session["watermark"]),
                        true=true[session["decode_rank"]],
                    )
