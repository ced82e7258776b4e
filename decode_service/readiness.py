"""Whether requests should be sent to this decode rank, and if not, every reason why.

It is ready when it takes rooms, and made progress lately or had nothing to do. A rank that answers while nothing moves is the
worst kind of healthy.
"""

from decode_service.state import DecodeState


def unready_reasons(state: DecodeState, stall_s: float) -> list[str]:
    """Reasons in words; none means ready. Work that has waited for ``stall_s`` while nothing at all moved counts as wedged."""
    reasons = []
    if state.draining:
        reasons.append("it is draining")
    if state.stuck_reason:
        reasons.append(f"its ring is pinned and could not be replaced: {state.stuck_reason}")
    waiting = list(_waiting_since(state))
    if waiting:
        oldest, moved = min(waiting), state.history.last_end()
        quiet_s = state.now - (oldest if moved is None else max(oldest, moved))
        if quiet_s >= stall_s:
            reasons.append(f"nothing has moved for {quiet_s:.1f} s while {len(waiting)} chunks wait")
    return reasons


def _waiting_since(state: DecodeState) -> list[float]:
    """Chunks that all their writers have asked for, with the moment since when. What a prefill has not asked for is its own."""
    return [
        chunk.since
        for room in state.rooms
        for chunk in room.chunks.values()
        if chunk.grant is not None or (room.writers and len(chunk.asked) == len(room.writers))
    ]
