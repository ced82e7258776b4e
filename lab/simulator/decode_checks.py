"""What must hold in a decode rank after every step, and what must be left of it at the end."""

from collections.abc import Iterator
from itertools import pairwise

from decode_service.grants import Grant, GrantState, GrantTable
from decode_service.handler import DecodeStagingHandler
from decode_service.state import TimerKind
from lab.simulator.memory import ViolationError
from protocol.watermark import Watermark, is_watermark_ready


class DecodeChecks:
    """The invariants of one rank over its epochs."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._epoch = 0
        self._highest = Watermark(0, 0)
        self._last_round_granted = -1
        self._seen_ids: set[int] = set()
        self._ended_ids: set[int] = set()

    def after_step(self, handler: DecodeStagingHandler) -> None:
        """Raise ``ViolationError`` if an invariant of the ring does not hold."""
        grants = handler.state.grants
        if handler.settings.epoch != self._epoch:
            self._epoch, self._highest, self._last_round_granted = handler.settings.epoch, Watermark(0, 0), -1
            self._ended_ids |= self._seen_ids
            self._seen_ids = set()
        self._check_watermark(grants)
        live = list(grants)
        self._check_identity(live)
        self._check_rooms(handler)
        self._check_overlap(live, grants.allocator.get_watermark(), grants.allocator.total_size)

    def _check_watermark(self, grants: GrantTable) -> None:
        allocator, watermark = grants.allocator, grants.allocator.get_watermark()
        if watermark < self._highest:
            self._fail(f"the watermark fell from {self._highest} to {watermark}")
        self._highest = watermark
        if len(grants) == 0 and (allocator.head or watermark != (allocator.round, 0)):
            self._fail(f"an empty ring has head {allocator.head} and watermark {watermark}")
        if len(grants) == 0 and watermark.round <= self._last_round_granted:
            self._fail(f"an empty ring has watermark {watermark} and a grant was given in that round")
        oldest = grants.oldest()
        if oldest is not None and not is_watermark_ready(watermark, oldest.allocation.round, oldest.end):
            self._fail(f"its oldest grant {oldest.alloc_id} is not ready under {watermark}")

    def _check_identity(self, live: list[Grant]) -> None:
        """An id names one grant for ever, a chunk has one open grant, and a grant ends once."""
        ids = {grant.alloc_id for grant in live}
        self._ended_ids |= self._seen_ids - ids
        if again := ids & self._ended_ids:
            self._fail(f"grants {sorted(again)} live although they had ended")
        self._seen_ids = ids
        chunks: set[tuple[str, int]] = set()
        for grant in live:
            self._last_round_granted = max(self._last_round_granted, grant.allocation.round)
            if grant.state is not GrantState.CLOSED:
                if (grant.room.id, grant.chunk) in chunks:
                    self._fail(f"chunk {grant.chunk} of room {grant.room.id} has two open grants")
                chunks.add((grant.room.id, grant.chunk))

    def _check_rooms(self, handler: DecodeStagingHandler) -> None:
        """No frame sizes anything, and a writer's new life ends the rooms of its former one."""
        for room in handler.state.rooms:
            if len(room.scattered) != -(-room.num_tokens // room.chunk_tokens):
                self._fail(f"room {room.id} of {room.num_tokens} tokens has {len(room.scattered)} chunks")
            for writer, life in room.lives.items():
                session = handler.state.sessions.of_writer(room.group, writer)
                if room.end is None and session is not None and session.incarnation != life:
                    self._fail(f"room {room.id} goes on although writer {writer} lives anew")

    def _check_overlap(self, live: list[Grant], watermark: Watermark, size: int) -> None:
        spans = []
        for grant in live:
            start, end = grant.allocation.offset, grant.end
            if not 0 <= start < end <= size:
                self._fail(f"grant {grant.alloc_id} is [{start}, {end}) in a ring of {size} bytes")
            if is_watermark_ready(watermark, grant.allocation.round, end):
                spans.append((start, end, grant.alloc_id))
        spans.sort()
        for (_, end, one), (start, _, other) in pairwise(spans):
            if start < end:
                self._fail(f"grants {one} and {other} may both be written and overlap")

    def _fail(self, problem: str) -> None:
        raise ViolationError(f"{self._name}: {problem}")


def decode_leaks(handler: DecodeStagingHandler, prefills: int) -> Iterator[str]:
    """What is left in a rank with which nobody has any business any more. ``prefills``: how many live ones there are."""
    state = handler.state
    sessions = list(state.sessions.all())
    known = {session.id for session in sessions}
    if len(sessions) > prefills or any(session.fenced for session in sessions):
        yield f"{len(sessions)} sessions, {sum(session.fenced for session in sessions)} of them fenced, of {prefills} prefills"
    if state.routes.keys() != known or len(state.fanout) != len(sessions):
        yield f"{len(state.routes)} routes and {len(state.fanout)} subscribers for {len(sessions)} sessions"
    if any(session.open_chunks or session.unwritten for session in sessions):
        yield "sessions that still count chunks or grants"
    if len(state.parking) or len(state.rooms) or state.retired_grants:
        yield f"{len(state.parking)} parked requests, {len(state.rooms)} rooms, {len(state.retired_grants)} retired grants"
    if copies := handler._completing.pieces._copies:  # noqa: SLF001 - the simulator looks for what was forgotten
        yield f"copies that never ended: {sorted(copies)}"
    if timers := [key for key in state.timers._deadline if key.kind is not TimerKind.LEASE or key.session not in known]:  # noqa: SLF001
        yield f"timers {timers}"
