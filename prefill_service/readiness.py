"""Whether work should be given to this prefill rank, and if not, every reason why.

It is ready when it has a session with a decode rank, or none to seek, and made progress lately or had nothing to do. A rank
that answers while nothing moves is the worst kind of healthy.
"""

from collections import Counter

from prefill_service.chunks import ChunkState
from prefill_service.state import PrefillState


def unready_reasons(state: PrefillState, stall_s: float) -> list[str]:
    """Reasons in words; none means ready. Work that has waited for ``stall_s`` while nothing at all moved counts as wedged."""
    reasons = []
    if state.over is not None:
        reasons.append(f"its life is over ({state.over[0]}: {state.over[1]})")
    if state.draining:
        reasons.append("it is draining")
    if state.peers and not any(peer.is_current for peer in state.peers.values()):
        reasons.append(f"it is subscribed to none of {len(state.peers)} decode ranks{_refusals(state)}")
    waiting = [
        chunk.since
        for room in state.rooms
        if room.failure is None
        for chunk in room.open_chunks()
        if chunk.state is not ChunkState.COMPUTED
    ]
    if waiting:
        oldest = min(waiting)
        quiet_s = state.now - (oldest if state.progress_at is None else max(oldest, state.progress_at))
        if quiet_s >= stall_s:
            reasons.append(f"nothing has moved for {quiet_s:.1f} s while {len(waiting)} chunks wait")
    return reasons


def _refusals(state: PrefillState) -> str:
    """By which codes they turned it away: what each of them said is told by an explanation."""
    codes = Counter(peer.refusal.code for peer in state.peers.values() if peer.refusal is not None)
    words = ", ".join(f"{number} of them with {code}" for code, number in sorted(codes.items()))
    return f" (refused: {words})" if words else ""
