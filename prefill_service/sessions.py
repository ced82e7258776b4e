"""A decode rank as this prefill rank knows it, and the session between the two.

    SUBSCRIBING --SUBSCRIBED--> OPENING --plane opened--> CURRENT
        ^                          |                         |
        |                          +---- session lost -------+
        +--no write of the lost session runs-- STOPPING <----+

Everything heard in a session lives in ``Session`` and dies with it. A lost session stays in ``Peer.ended`` until none of its
writes runs and its plane is closed, because its writes may end late; they are never taken for those of the next session.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from enum import Enum, StrEnum

from prefill_service.chunks import Chunk
from prefill_service.gate import WatermarkGate
from prefill_service.shares import WriterShare
from protocol.messages import Subscribed, WriteFailed
from protocol.timers import Backoff

_PAST_SESSIONS = 32
_UNANSWERED_HEARTBEATS = 64


class PeerState(StrEnum):
    """How far the way to one decode rank is open."""

    SUBSCRIBING = "subscribing"
    OPENING = "opening"
    CURRENT = "current"
    STOPPING = "stopping"


class PlaneState(Enum):
    """What has become of a session's ``OpenPlane``."""

    OPENING = "opening"
    OPEN = "open"
    FAILED = "failed"


@dataclass(slots=True, eq=False)
class Session:
    """One session, and all that must not outlive it."""

    peer: str
    terms: Subscribed
    share: WriterShare
    lease_until: float
    """No write starts at or after this moment, in seconds on our clock."""
    probe: Backoff
    gate: WatermarkGate[Chunk] = field(default_factory=WatermarkGate)
    plane: PlaneState = PlaneState.OPENING
    running: set[int] = field(default_factory=set)
    """Writes that have begun and not ended."""
    claimed: bool = False
    """A subscription has said that none of its writes runs any more."""
    busy: dict[Chunk, None] = field(default_factory=dict)
    """Chunks that D had no place for, in the order of its answers: asked again as soon as one is scattered."""
    aborted_rooms: OrderedDict[str, tuple[str, float]] = field(default_factory=OrderedDict)
    """Rooms unknown here that D has given up: its reason, and until when to remember it."""
    draining: bool = False
    seq: int = 0
    unanswered: OrderedDict[int, float] = field(default_factory=OrderedDict)
    """When each heartbeat that still waits for its ack was sent."""
    probe_at: float | None = None

    @property
    def id(self) -> str:
        """The id that D minted."""
        return self.terms.session

    @property
    def is_over(self) -> bool:
        """For a lost session: none of its writes runs, and the shell has said what became of its plane."""
        return not self.running and self.plane is not PlaneState.OPENING

    def next_seq(self, now: float) -> int:
        """Number a heartbeat and note when it is sent."""
        self.seq += 1
        self.unanswered[self.seq] = now
        while len(self.unanswered) > _UNANSWERED_HEARTBEATS:
            self.unanswered.popitem(last=False)
        return self.seq

    def answered(self, seq: int) -> bool:
        """Renew the lease from the sending of heartbeat ``seq``; False if it is unknown or was answered before."""
        sent = self.unanswered.pop(seq, None)
        if sent is None:
            return False
        self.lease_until = max(self.lease_until, sent + self.terms.lease_s)
        return True


@dataclass(slots=True)
class PendingAbort:
    """An ``ABORT`` of ours that waits for its ack."""

    abort_id: int
    reason: str
    backoff: Backoff


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why there is no session: a static code, and words for people. ``final``: rooms need not wait for it to change."""

    code: str
    message: str
    final: bool


@dataclass(slots=True, eq=False)
class Peer:
    """One decode endpoint and the way to it."""

    endpoint: str
    expected_rank: int | None
    attempt: int
    backoff: Backoff
    state: PeerState = PeerState.SUBSCRIBING
    attempt_sent: float = 0.0
    session: Session | None = None
    """The session in ``OPENING`` and ``CURRENT``; otherwise ``None``."""
    ended: dict[str, Session] = field(default_factory=dict)
    """Lost sessions that are not over."""
    past: deque[str] = field(default_factory=lambda: deque(maxlen=_PAST_SESSIONS))
    """Ids of the latest lost sessions."""
    stopping: str | None = None
    """The lost session whose writes must end before the next subscription."""
    stopped: str | None = None
    """The lost session all of whose writes have ended; said to D until it grants a new one."""
    lost: str | None = None
    """The lost session in which writes may still land; said to D until it grants a new one."""
    unproven: dict[tuple[str, str], dict[int, WriteFailed]] = field(default_factory=dict)
    """Failed one-sided writes by session and room, then by grant: their bytes may still land, so no word of ours is proof."""
    decode_incarnation: int | None = None
    missed_planes: dict[str, int] = field(default_factory=dict)
    """Planes that did not open once, with the epoch in which that was."""
    failed_planes: dict[str, str] = field(default_factory=dict)
    """Planes that did not open, and why; not offered."""
    refusal: Refusal | None = None
    aborts: dict[str, PendingAbort] = field(default_factory=dict)
    """By room."""
    leaving: bool = False
    rejoin: bool = False
    heard: dict[str, float] = field(default_factory=dict)
    """When a frame of each type last came from it."""
    sent: dict[str, float] = field(default_factory=dict)
    """When a frame of each type last went to it."""

    @property
    def is_current(self) -> bool:
        """Whether chunks may be asked for."""
        return self.state is PeerState.CURRENT

    def give_up(self, session_id: str) -> None:
        """Say of a lost session, none of whose writes runs, what is true of it."""
        if self.is_unproven(session_id):
            self.lost = session_id
        else:
            self.stopped = session_id

    def note_unproven(self, failed: WriteFailed) -> None:
        """A one-sided write of this life has failed. Remembered for as long as D may ask for a word about its session."""
        for key in [key for key in self.unproven if not self.knows(key[0]) and key[0] not in self.ended]:
            del self.unproven[key]
        self.unproven.setdefault((failed.session, failed.room), {})[failed.alloc_id] = failed

    def is_unproven(self, session_id: str) -> bool:
        """Say whether bytes of a failed write may still land in what this session was granted."""
        return any(session == session_id for session, _ in self.unproven)

    def knows(self, session_id: str) -> bool:
        """Say whether this life of ours has held that session with this peer."""
        return session_id in self.past or (self.session is not None and self.session.id == session_id)
