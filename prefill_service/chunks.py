"""One chunk on its way to one decode rank: its states, and the one table that says which event leads where.

    COMPUTED --asked--> REQUESTED --granted--> GRANTED --started--> WRITING --finished--> WRITTEN --scattered--> SCATTERED
       ^                    ^  ^                 ^  ^                  |                     |
       |                    |  +------stale------+--|------------------|---------------------+
       |                    |                       +---failed---------+                     |
       |                    +--(ask, TAINTED)--tainted-----------------+                     |
       |                                            +---------------------------rejected-----+
       +--- the session is lost: whatever was asked, granted or written is asked again from the source pages

An event that a state does not expect is our bug, not the peer's: whoever hears the peer decides first whether what it says
still applies. ``SCATTERED`` and ``DROPPED`` are final.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from protocol.errors import LocalProtocolError
from protocol.messages import GrantSlice, GrantStatus
from protocol.timers import Backoff

FIRST_ATTEMPT: Final = 1
"""The attempt of the first write of every grant; a rejection raises it by one."""


class ChunkState(StrEnum):
    """Where a chunk stands; see the drawing above."""

    COMPUTED = "computed"
    REQUESTED = "requested"
    GRANTED = "granted"
    WRITING = "writing"
    WRITTEN = "written"
    TAINTED = "tainted"
    SCATTERED = "scattered"
    DROPPED = "dropped"


class ChunkEvent(StrEnum):
    """What happened to a chunk."""

    ASKED = "asked"
    GRANTED = "granted"
    STARTED = "started"
    FINISHED = "finished"
    FAILED = "failed"
    TAINTED = "tainted"
    REJECTED = "rejected"
    STALE = "stale"
    SCATTERED = "scattered"
    SESSION_LOST = "session_lost"
    NOT_NEEDED = "not_needed"
    DROPPED = "dropped"


_LIVE: Final = tuple(state for state in ChunkState if state not in {ChunkState.SCATTERED, ChunkState.DROPPED})

TRANSITIONS: Final[dict[tuple[ChunkState, ChunkEvent], ChunkState]] = {
    (ChunkState.COMPUTED, ChunkEvent.ASKED): ChunkState.REQUESTED,
    (ChunkState.COMPUTED, ChunkEvent.NOT_NEEDED): ChunkState.SCATTERED,
    (ChunkState.REQUESTED, ChunkEvent.GRANTED): ChunkState.GRANTED,
    (ChunkState.REQUESTED, ChunkEvent.TAINTED): ChunkState.TAINTED,
    (ChunkState.REQUESTED, ChunkEvent.SCATTERED): ChunkState.SCATTERED,
    (ChunkState.GRANTED, ChunkEvent.GRANTED): ChunkState.GRANTED,
    (ChunkState.GRANTED, ChunkEvent.STARTED): ChunkState.WRITING,
    (ChunkState.GRANTED, ChunkEvent.TAINTED): ChunkState.TAINTED,
    (ChunkState.GRANTED, ChunkEvent.STALE): ChunkState.REQUESTED,
    (ChunkState.GRANTED, ChunkEvent.SCATTERED): ChunkState.SCATTERED,
    (ChunkState.WRITING, ChunkEvent.FINISHED): ChunkState.WRITTEN,
    (ChunkState.WRITING, ChunkEvent.FAILED): ChunkState.GRANTED,
    (ChunkState.WRITING, ChunkEvent.TAINTED): ChunkState.TAINTED,
    (ChunkState.WRITING, ChunkEvent.SCATTERED): ChunkState.SCATTERED,
    (ChunkState.WRITTEN, ChunkEvent.REJECTED): ChunkState.GRANTED,
    (ChunkState.WRITTEN, ChunkEvent.STALE): ChunkState.REQUESTED,
    (ChunkState.WRITTEN, ChunkEvent.SCATTERED): ChunkState.SCATTERED,
    (ChunkState.TAINTED, ChunkEvent.GRANTED): ChunkState.GRANTED,
    (ChunkState.TAINTED, ChunkEvent.SCATTERED): ChunkState.SCATTERED,
    **{(state, ChunkEvent.SESSION_LOST): ChunkState.COMPUTED for state in _LIVE},
    **{(state, ChunkEvent.DROPPED): ChunkState.DROPPED for state in _LIVE},
}


class Taint(NamedTuple):
    """A grant into which a write of ours may still land: it is never written again, in no session of its epoch."""

    epoch: int
    alloc_id: int
    attempt: int
    reason: str


@dataclass(slots=True, eq=False)
class Chunk:
    """One grid chunk of one room for one decode rank, until it is scattered there. Compared by identity."""

    room: str
    peer: str
    index: int
    token_start: int
    num_tokens: int
    backoff: Backoff
    since: float
    """When its state began, in seconds."""
    state: ChunkState = ChunkState.COMPUTED
    grant: GrantSlice | None = None
    attempt: int = FIRST_ATTEMPT
    spent_alloc: int = -1
    """The highest ``alloc_id`` of this session that is over for us: late repeats of its grant mean nothing."""
    taint: Taint | None = None
    write_id: int | None = None
    """The write that runs for this chunk in the current session."""
    checksum: int | None = None
    write_failures: int = 0
    last_answer: GrantStatus | None = None

    def apply(self, event: ChunkEvent, now: float) -> None:
        """Move on by the table; ``LocalProtocolError`` if the table has no such move."""
        after = TRANSITIONS.get((self.state, event))
        if after is None:
            raise LocalProtocolError(f"chunk {self.index} of room {self.room!r} is {self.state}: {event} cannot happen to it")
        self.state, self.since = after, now

    def is_current(self, alloc_id: int) -> bool:
        """Say whether this is the grant it holds."""
        return self.grant is not None and self.grant.alloc_id == alloc_id
