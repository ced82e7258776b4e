"""Rooms of the prefill side: what the engine has handed over, cut on the grid, and how far each decode rank has got with it.

A room is *live* from its first submission until it is done or has failed **and** none of its writes runs: from then on a
tombstone holds its result, refuses its id, and answers whoever asks late.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from prefill_service.chunks import Chunk
from prefill_service.outputs import RoomDone, RoomFailed
from protocol.layout import PageRun

RoomResult = RoomDone | RoomFailed


class RoomRefused(Exception):
    """The engine asked for something that cannot be. ``code`` is static; ``limit`` is set where a table is full."""

    def __init__(self, code: str, message: str, limit: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.limit = limit


class UnknownRoomError(KeyError):
    """No room of this id is live, and none ended recently."""


@dataclass(slots=True, eq=False)
class Target:
    """One decode rank that a room goes to."""

    peer: str
    open: dict[int, Chunk] = field(default_factory=dict)
    """Chunks not scattered there, by index."""
    created: int = 0
    """Chunks of the room that were put on their way to this rank."""
    owes_nothing: bool = False
    """This writer's slice for that rank is empty."""
    known: bool = True
    """The present life of that rank may know the room: from its engine, or because it was sent a request."""
    answered: bool = False
    """The present life of that rank has answered for the room, so its state of the room dies with it."""
    running: dict[int, str] = field(default_factory=dict)
    """Writes that run, with their session."""
    abort_due: bool = False
    """An ``ABORT`` of ours goes out as soon as no write runs."""
    acks_owed: dict[tuple[str, int], None] = field(default_factory=dict)
    """``(session, abort_id)`` of each ``ABORT`` of D's that waits for our writes to end."""


@dataclass(slots=True, eq=False)
class Room:
    """One request on its way from this prefill rank to its decode ranks."""

    id: str
    targets: dict[str, Target]
    source: PageRun
    submitted_at: float
    progress_at: float
    tokens: int = 0
    offered: int = 0
    """Grid chunks all of whose tokens exist."""
    finished: bool = False
    failure: RoomFailed | None = None
    traceparent: str | None = None

    @property
    def is_quiet(self) -> bool:
        """Whether none of its writes runs."""
        return not any(target.running for target in self.targets.values())

    @property
    def is_complete(self) -> bool:
        """Whether every chunk has been scattered on every decode rank that is owed one."""
        return self.finished and all(
            not target.open and (target.owes_nothing or target.created == self.offered) for target in self.targets.values()
        )

    def open_chunks(self) -> Iterator[Chunk]:
        """Every chunk that is not scattered."""
        return (chunk for target in self.targets.values() for chunk in target.open.values())


class RoomTable:
    """All rooms, by id and by decode endpoint, and the tombstones of those that are over."""

    def __init__(self, tombstone_s: float) -> None:
        self._live: dict[str, Room] = {}
        self._by_peer: dict[str, dict[str, Room]] = {}
        self._tombstone_s = tombstone_s
        self._over: OrderedDict[str, tuple[RoomResult, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[Room]:
        return iter(tuple(self._live.values()))

    @property
    def remembered(self) -> int:
        """Ids that cannot be used again yet: of live rooms, and of tombstones."""
        return len(self._live) + len(self._over)

    def add(self, room: Room) -> None:
        """Make a new room live."""
        assert room.id not in self._live
        self._live[room.id] = room
        for peer in room.targets:
            self._by_peer.setdefault(peer, {})[room.id] = room

    def live(self, room_id: str) -> Room | None:
        """The live room of that id, failed or not."""
        return self._live.get(room_id)

    def of_peer(self, peer: str) -> tuple[Room, ...]:
        """Every live room that goes to this decode endpoint, oldest first."""
        return tuple(self._by_peer.get(peer, {}).values())

    def bury(self, room: Room, result: RoomResult, now: float) -> None:
        """Replace a room that is over, and quiet, by a tombstone."""
        assert room.is_quiet
        del self._live[room.id]
        for peer in room.targets:
            rooms = self._by_peer[peer]
            del rooms[room.id]
            if not rooms:
                del self._by_peer[peer]
        self._over[room.id] = (result, now + self._tombstone_s)

    def result(self, room_id: str) -> RoomResult | None:
        """How the room ended; ``None`` if it is not over or not remembered."""
        entry = self._over.get(room_id)
        return entry[0] if entry is not None else None

    def expire(self, now: float) -> None:
        """Forget the tombstones whose time is over."""
        while self._over and next(iter(self._over.values()))[1] <= now:
            self._over.popitem(last=False)
