"""Which writes run, and which may start next: first ready, first written, a bounded number at a time.

A write is bound for life to the session and the grant it began with. Whatever happens to the chunk meanwhile, its end is told
to this table, and only a chunk that still points at it takes it for its own.
"""

from dataclasses import dataclass, field
from itertools import count

from prefill_service.chunks import Chunk
from prefill_service.rooms import Room
from prefill_service.sessions import Session
from protocol.errors import LocalProtocolError


@dataclass(slots=True, eq=False)
class Write:
    """One ``WriteChunk`` that was output and has not been reported back."""

    id: int
    chunk: Chunk
    room: Room
    session: Session
    alloc_id: int
    attempt: int
    abandoned: bool = False
    """Its session is over and nobody waits for it any more; it takes no place among the bounded ones."""


@dataclass(slots=True, eq=False)
class WriteQueue:
    """The chunks ready to be written, in the order in which they became so, and the writes that run."""

    running: dict[int, Write] = field(default_factory=dict)
    in_flight: int = 0
    """Running writes that are not abandoned."""
    _ready: dict[Chunk, None] = field(default_factory=dict)
    _ids: "count[int]" = field(default_factory=lambda: count(1))

    def __len__(self) -> int:
        return len(self._ready)

    def __contains__(self, chunk: Chunk) -> bool:
        return chunk in self._ready

    def add(self, chunk: Chunk) -> None:
        """Queue a chunk whose grant may be written."""
        self._ready[chunk] = None

    def discard(self, chunk: Chunk) -> None:
        """Take a chunk out of the queue; one that is not in it changes nothing."""
        self._ready.pop(chunk, None)

    def first(self) -> Chunk:
        """The chunk that has been ready for longest."""
        return next(iter(self._ready))

    def next(self) -> Chunk:
        """Take out the chunk that has been ready for longest."""
        chunk = self.first()
        del self._ready[chunk]
        return chunk

    def start(self, chunk: Chunk, room: Room, session: Session) -> Write:
        """Note that a write of this chunk's grant begins."""
        assert chunk.grant is not None
        write = Write(next(self._ids), chunk, room, session, chunk.grant.alloc_id, chunk.attempt)
        self.running[write.id] = write
        self.in_flight += 1
        session.running.add(write.id)
        room.targets[chunk.peer].running[write.id] = session.id
        chunk.write_id = write.id
        return write

    def abandon(self, write: Write) -> None:
        """Wait no longer for the end of this write of a dead session."""
        if not write.abandoned:
            write.abandoned = True
            self.in_flight -= 1

    def end(self, write_id: int) -> Write:
        """Note that a write has ended, and return it. Raises ``LocalProtocolError`` for one that does not run."""
        write = self.running.pop(write_id, None)
        if write is None:
            raise LocalProtocolError(f"write {write_id} does not run: it was reported twice or never started")
        if not write.abandoned:
            self.in_flight -= 1
        write.session.running.discard(write_id)
        del write.room.targets[write.chunk.peer].running[write_id]
        return write
