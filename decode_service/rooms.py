"""Rooms: what each request's KV transfer into this decode rank still needs, and what is remembered when it is over.

A room lives from ``register_room`` until every token is scattered (done) or it fails. Failed is sticky. A room that is over
leaves one tombstone, so that a late or repeated message is answered from the record and a reused id is refused while such
messages may exist.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from protocol.layout import PageRun, WriterKey, WriterSlice

if TYPE_CHECKING:
    from decode_service.grants import Grant


@dataclass(slots=True)
class RoomRefused(Exception):
    """The engine asked for something this rank cannot do. ``code`` is static; ``limit`` is the bound that was met, if any."""

    code: str
    message: str
    limit: int | None = None

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


@dataclass(frozen=True, slots=True)
class RoomEnd:
    """How a room ended. ``code`` is empty if it is done."""

    code: str = ""
    message: str = ""

    @property
    def done(self) -> bool:
        """Whether every token arrived."""
        return not self.code


@dataclass(slots=True)
class RoomClock:
    """Time that counts against a room's deadline, in seconds: it starts with the first request and can be stopped."""

    elapsed: float = 0.0
    running_since: float | None = None

    def run(self, running: bool, now: float) -> None:
        """Start or stop; what has run so far stays counted."""
        self.elapsed = self.read(now)
        self.running_since = now if running else None

    def read(self, now: float) -> float:
        """Seconds counted so far."""
        return self.elapsed + (now - self.running_since if self.running_since is not None else 0.0)


@dataclass(slots=True, eq=False)
class Chunk:
    """A chunk that somebody has asked for and that is not scattered yet."""

    index: int
    token_start: int
    num_tokens: int
    asked: dict[WriterKey, str] = field(default_factory=dict)
    """Which writers wait for a grant, and by which session."""
    grant: "Grant | None" = None
    rewrites: int = 0
    since: float = 0.0
    """When the first of its writers asked."""


@dataclass(slots=True, eq=False)
class Room:
    """One live room. ``scattered`` is sized here, at registration: no index from a frame ever sizes anything."""

    id: str
    group: str
    num_tokens: int
    chunk_tokens: int
    destination: PageRun
    deadline_s: float
    registered_at: float
    scattered: bytearray = field(init=False)
    remaining: int = field(init=False)
    chunks: dict[int, Chunk] = field(default_factory=dict)
    writers: tuple[WriterSlice, ...] = ()
    """Whose slices make a chunk; known from the first request on."""
    lives: dict[WriterKey, int] = field(default_factory=dict)
    """Which life of each writer has asked for something: its source pages die with it."""
    clock: RoomClock = field(default_factory=RoomClock)
    started: bool = False
    end: RoomEnd | None = None
    """Set when the room has failed; its record goes when our own copies have ended."""
    traceparent: str | None = None
    """What its prefill said of the trace it belongs to (W3C)."""
    copies: int = 0
    """Copies of ours that run into its pages or its grants."""
    granted: int = 0
    granted_ready: int = 0
    waiting_turns: int = 0
    """Chunks that all writers have asked for and that wait for a region."""

    def __post_init__(self) -> None:
        count = -(-self.num_tokens // self.chunk_tokens)
        self.scattered = bytearray(count)
        self.remaining = count

    def tokens_of(self, chunk: int) -> tuple[int, int]:
        """``(token_start, num_tokens)`` of a chunk on the grid; ``IndexError`` if the room has no such chunk."""
        if not 0 <= chunk < len(self.scattered):
            raise IndexError(chunk)
        start = chunk * self.chunk_tokens
        return start, min(self.chunk_tokens, self.num_tokens - start)

    def is_writer(self, writer: WriterKey) -> bool:
        """Whether that writer's slice is part of every chunk of this room."""
        return any(layout.writer == writer for layout in self.writers)

    def mark_scattered(self, chunk: int) -> None:
        """Record that a chunk is in its pages; once and for all."""
        assert not self.scattered[chunk]
        self.scattered[chunk] = 1
        self.remaining -= 1

    def set_clock(self, now: float) -> None:
        """The clock stands still only while the room queues behind others: all it waits for is the ring."""
        queued = self.granted_ready == 0 and (self.granted > 0 or self.waiting_turns > 0)
        self.clock.run(self.started and not queued, now)


class RoomTable:
    """Live rooms by id, and the tombstones of those that are over."""

    def __init__(self, max_rooms: int, max_tombstones: int, tombstone_s: float) -> None:
        self._live: dict[str, Room] = {}
        self._over: OrderedDict[str, tuple[RoomEnd, float]] = OrderedDict()
        self._max_rooms = max_rooms
        self._max_tombstones = max_tombstones
        self._tombstone_s = tombstone_s

    def add(self, room: Room) -> None:
        """Make a room live; raises ``RoomRefused`` if its id is taken or remembered, or if the table is full."""
        if room.id in self._live:
            raise RoomRefused("room_exists", f"room {room.id!r} is live on this rank; wait for it or abort it first")
        if room.id in self._over:
            raise RoomRefused("room_closed", f"room {room.id!r} ended recently; use a new room id")
        if len(self._live) >= self._max_rooms:
            raise RoomRefused("busy", f"{len(self._live)} rooms are live; wait for some to end", self._max_rooms)
        if len(self._over) >= self._max_tombstones:
            raise RoomRefused("busy", "too many rooms ended recently; try again later", self._max_tombstones)
        self._live[room.id] = room

    def bury(self, room: Room, end: RoomEnd, now: float) -> None:
        """Replace a live room by its tombstone."""
        del self._live[room.id]
        self._over[room.id] = (end, now + self._tombstone_s)

    def live(self, room_id: str) -> Room | None:
        """The live room of that id, failed ones included until their record goes."""
        return self._live.get(room_id)

    def over(self, room_id: str) -> RoomEnd | None:
        """How the room of that id ended, if that is still remembered."""
        buried = self._over.get(room_id)
        return buried[0] if buried else None

    def forget_old(self, now: float) -> None:
        """Drop tombstones whose time has passed. All last equally long, so the oldest is always first."""
        while self._over and next(iter(self._over.values()))[1] <= now:
            self._over.popitem(last=False)

    def next_deadline(self) -> float | None:
        """When the oldest tombstone may go."""
        return next(iter(self._over.values()))[1] if self._over else None

    @property
    def tombstone_count(self) -> int:
        """How many ended rooms are remembered."""
        return len(self._over)

    def __iter__(self) -> Iterator[Room]:
        return iter(tuple(self._live.values()))

    def __len__(self) -> int:
        return len(self._live)
