"""New memory for a ring that a silent writer pins: the region is replaced, never reused on a guess.

A grant that closed without proof is *quarantined*: live, pinning the watermark, visible. After ``quarantine_s`` the whole
region is given up: a new epoch over new memory, every session subscribes again, and what was not scattered is written again
from its source pages. The old memory is *retired*: it stays until no copy of ours runs in it, and where a writer could still
reach it (one-sided planes between hosts) for ever. A scatter that runs in it may finish there, and its room's record says so.
"""

from dataclasses import dataclass, field, replace

from decode_service.closing import Closing
from decode_service.grants import GrantState, GrantTable
from decode_service.handler_settings import PlaneOffer
from decode_service.outputs import ReleaseRegion, ReplaceRegion, Send
from decode_service.state import DecodeState
from protocol.messages import Error, ErrorCode


@dataclass(slots=True, eq=False)
class Replacing:
    """Decides when the region must go, and moves the machine to the next one."""

    state: DecodeState
    closing: Closing
    _retired: set[int] = field(default_factory=set)
    """Epochs whose memory is still kept."""
    _reachable: set[int] = field(default_factory=set)
    """Those of them that a writer may still reach: kept for ever."""

    @property
    def retired_count(self) -> int:
        """How many former regions are still kept."""
        return len(self._retired)

    def quarantine_over(self, alloc_id: int) -> None:
        """No proof came in time for this grant: ask for new memory, or fail what hangs on it if there may be no more."""
        grant = self.state.grants.get(alloc_id)
        if grant is None or self.state.replacing:
            return
        limit = self.state.settings.max_retired_regions
        if len(self._retired) >= limit:
            self._wait_for_proof(f"{len(self._retired)} former regions are still kept, limit {limit}")
            return
        self.state.replacing = True
        self.state.emit(ReplaceRegion(f"grant {alloc_id} of room {grant.room.id!r}: {grant.closed_reason}"))

    def unavailable(self, reason: str) -> None:
        """New memory could not be had."""
        self.state.replacing = False
        self._wait_for_proof(reason)

    def replaced(self, epoch: int, planes: tuple[PlaneOffer, ...]) -> None:
        """New memory is there: leave the old epoch behind."""
        state = self.state
        old = state.settings.epoch
        state.counters["regions_replaced"] += 1
        self._retired.add(old)
        self._leave_grants(old)
        self._leave_sessions()
        allocator = state.grants.allocator
        state.begin_epoch(replace(state.settings, epoch=epoch, planes=planes), GrantTable(allocator.successor()))
        self.settle()

    def settle(self) -> None:
        """Give back each retired region in which nothing of ours runs any more and which nobody else can reach."""
        for epoch in tuple(self._retired - self._reachable):
            if not self.state.has_retired_grants(epoch):
                self._retired.discard(epoch)
                self.state.emit(ReleaseRegion(epoch))

    def _wait_for_proof(self, reason: str) -> None:
        """Nothing can be done but wait for proof: fail the rooms concerned, say so, and look again later."""
        self.state.stuck_reason = reason
        self.state.counters["replacements_refused"] += 1
        for grant in self.state.grants:
            if grant.state is GrantState.CLOSED:
                self.closing.fail_room(grant.room, "staging_pinned", f"{grant.closed_reason}; {reason}")
                self.closing.watch_quarantine(grant)

    def _leave_grants(self, epoch: int) -> None:
        for grant in self.state.grants:
            if any(self._is_reachable(slot.session) and not slot.quiet for slot in grant.slots.values()) or grant.tainted:
                self._reachable.add(epoch)
            grant.retired_epoch = epoch
            if grant.has_copies:
                if grant.state is GrantState.OPEN:
                    grant.state = GrantState.CLOSED
                self.state.retired_grants[grant.alloc_id] = grant
            else:
                self.closing.discard_grant(grant)

    def _is_reachable(self, session_id: str) -> bool:
        session = self.state.sessions.get(session_id)
        return session is not None and self.state.settings.offer(session.answer.plane).reaches_retired

    def _leave_sessions(self) -> None:
        text = "the region was replaced; subscribe again"
        for session in self.state.sessions.all():
            if not session.fenced:
                note = Error(session.id, ErrorCode.UNKNOWN_SESSION, text, "ReplaceRegion")
                self.state.emit(Send(self.state.routes[session.id], note))
            self.closing.leave_session(session)
