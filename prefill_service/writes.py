"""Which writes run, and which may start next: first ready, first written, a bounded number at a time for each decode rank.

The bound is per decode rank, so that one which takes no bytes (stopped, or behind a dead link) holds up nobody else's.

A write is bound for life to the session and the grant it began with. Whatever happens to the chunk meanwhile, its end is told
to this table, and only a chunk that still points at it takes it for its own.
"""

from collections import Counter
from collections.abc import Iterator
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
    in_flight: Counter[str] = field(default_factory=Counter)
    """Running writes to each decode endpoint, without those that are abandoned."""
    _ready: dict[str, dict[Chunk, None]] = field(default_factory=dict)
    """Chunks by decode endpoint, never an empty entry."""
    _ids: "count[int]" = field(default_factory=lambda: count(1))

    def __len__(self) -> int:
        return sum(map(len, self._ready.values()))

    def __contains__(self, chunk: Chunk) -> bool:
        return chunk in self._ready.get(chunk.peer, ())

    def add(self, chunk: Chunk) -> None:
        """Queue a chunk whose grant may be written."""
        self._ready.setdefault(chunk.peer, {})[chunk] = None

    def discard(self, chunk: Chunk) -> None:
        """Take a chunk out of the queue; one that is not in it changes nothing."""
        waiting = self._ready.get(chunk.peer, {})
        waiting.pop(chunk, None)
        if not waiting:
            self._ready.pop(chunk.peer, None)

    def peers(self, limit: int) -> Iterator[str]:
        """Decode endpoints for which a chunk is ready and fewer than ``limit`` writes run. Chunks may be taken meanwhile."""
        return (peer for peer in tuple(self._ready) if peer in self._ready and self.in_flight[peer] < limit)

    def next(self, peer: str) -> Chunk:
        """Take out the chunk for that endpoint that has been ready for longest."""
        chunk = next(iter(self._ready[peer]))
        self.discard(chunk)
        return chunk

    def start(self, chunk: Chunk, room: Room, session: Session) -> Write:
        """Note that a write of this chunk's grant begins."""
        assert chunk.grant is not None
        write = Write(next(self._ids), chunk, room, session, chunk.grant.alloc_id, chunk.attempt)
        self.running[write.id] = write
        self.in_flight[chunk.peer] += 1
        session.running.add(write.id)
        room.targets[chunk.peer].running[write.id] = session.id
        chunk.write_id = write.id
        return write

    def abandon(self, write: Write) -> None:
        """Wait no longer for the end of this write of a dead session."""
        if not write.abandoned:
            write.abandoned = True
            self._leave(write)

    def end(self, write_id: int) -> Write:
        """Note that a write has ended, and return it. Raises ``LocalProtocolError`` for one that does not run."""
        write = self.running.pop(write_id, None)
        if write is None:
            raise LocalProtocolError(f"write {write_id} does not run: it was reported twice or never started")
        if not write.abandoned:
            self._leave(write)
        write.session.running.discard(write_id)
        del write.room.targets[write.chunk.peer].running[write_id]
        return write

    def _leave(self, write: Write) -> None:
        peer = write.chunk.peer
        self.in_flight[peer] -= 1
        if not self.in_flight[peer]:
            del self.in_flight[peer]
