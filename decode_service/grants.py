"""Grants: one region of the ring for one chunk of one room, shared by its writers, each with its own slice.

    OPEN --all slices ready--> SCATTERING --verified and copied--> ended (consumed)
      |                            |
      |                            +--a slice is bad--> OPEN (that writer writes again)
      +--room failed, writer fenced--> CLOSED --every told writer quiet, no copy of ours runs--> ended (released)

``CLOSED`` is final: nobody may join, nothing is scattered. It ends only on proof, never on a guess, and pins the watermark
until then. A grant in ``SCATTERING`` may have begun to reach the pages, so unless a slice proves bad it can only end as
consumed.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from decode_service.allocator import Allocation, Oversized, StagingAllocator
from decode_service.rooms import Room
from protocol.layout import WriterKey, WriterSlice
from protocol.messages import ChunkReady, GrantSlice
from protocol.watermark import is_watermark_ready


class GrantState(Enum):
    """Where a grant stands; see the drawing above."""

    OPEN = "open"
    SCATTERING = "scattering"
    CLOSED = "closed"


@dataclass(slots=True, eq=False)
class WriterSlot:
    """One writer's slice of a grant, and what is known about that writer's writing."""

    layout: WriterSlice
    session: str
    """The session that was told ``granted``."""
    offset: int
    """First byte, relative to the grant."""
    num_bytes: int
    rejected: int = 0
    """Highest attempt that was rejected; the attempt after it is the one that may be written now."""
    rejected_code: str = ""
    ready: ChunkReady | None = None
    """The accepted word that this writer has finished and will not write again."""
    claimed: ChunkReady | None = None
    """The same word, still waiting for copies of ours into this slice to end."""
    proven: bool = False
    """Its session can write no more, whatever it last said."""
    pieces: int = 0
    """Bit ``i``: piece ``i`` of the current attempt has been taken for copying (two-sided planes)."""
    copies: int = 0
    """Copies of ours that run into this slice now."""

    @property
    def quiet(self) -> bool:
        """Whether it is proven that its writer will not write this grant again."""
        return self.ready is not None or self.proven


@dataclass(slots=True, eq=False)
class Grant:
    """One live region. Exactly one per (room, chunk) until it has ended."""

    allocation: Allocation
    num_bytes: int
    room: Room
    chunk: int
    slots: dict[WriterKey, WriterSlot]
    granted_at: float
    state: GrantState = GrantState.OPEN
    closed_at: float | None = None
    closed_reason: str = ""
    ready_since: float | None = None
    """When the true watermark let it be written; ``None`` while it does not."""
    tainted: bool = False
    """A one-sided write failed: its bytes may land at any time, so no word is proof. Ends only with the region."""
    ended: bool = False
    retired_epoch: int | None = None
    """Set when its region was replaced while copies of ours ran in it: it only waits for those."""
    scatter_running: bool = False
    written_at: float | None = None
    """When the last of its writers had written."""

    @property
    def alloc_id(self) -> int:
        """The allocator's id, which is also the wire's."""
        return self.allocation.alloc_id

    @property
    def end(self) -> int:
        """First byte after the region."""
        return self.allocation.offset + self.num_bytes

    @property
    def ready(self) -> bool:
        """Whether the true watermark lets it be written."""
        return self.ready_since is not None

    @property
    def has_copies(self) -> bool:
        """Whether a copy of ours reads or writes it now."""
        return self.scatter_running or any(slot.copies for slot in self.slots.values())

    @property
    def is_releasable(self) -> bool:
        """Closed, no writer can still write, and no copy of ours runs."""
        return (
            self.state is GrantState.CLOSED
            and not self.has_copies
            and not self.tainted
            and all(slot.quiet for slot in self.slots.values())
        )

    def slice_of(self, writer: WriterKey) -> GrantSlice:
        """The grant as its writer is told it."""
        slot = self.slots[writer]
        return GrantSlice(
            alloc_id=self.alloc_id,
            offset=self.allocation.offset,
            round=self.allocation.round,
            end=self.end,
            writer_offset=slot.offset,
            writer_bytes=slot.num_bytes,
        )


def lay_out(writers: tuple[WriterSlice, ...], sessions: dict[WriterKey, str], num_tokens: int) -> dict[WriterKey, WriterSlot]:
    """Place the writers' slices one after the other, in staging order, without gaps."""
    slots: dict[WriterKey, WriterSlot] = {}
    offset = 0
    for layout in writers:
        num_bytes = layout.token_bytes * num_tokens
        slots[layout.writer] = WriterSlot(layout, sessions[layout.writer], offset, num_bytes)
        offset += num_bytes
    return slots


@dataclass(slots=True)
class GrantTable:
    """All live grants over one allocator, and which of them the true watermark does not let pass yet."""

    allocator: StagingAllocator
    live_bytes: int = 0
    live_bytes_of: Counter[str] = field(default_factory=Counter)
    """Bytes of live grants by prefill group."""
    _by_id: dict[int, Grant] = field(default_factory=dict)
    _unready: OrderedDict[int, Grant] = field(default_factory=OrderedDict)

    def open(self, room: Room, chunk: int, slots: dict[WriterKey, WriterSlot], now: float) -> Grant | Oversized:
        """Assign a region for all slots together."""
        num_bytes = sum(slot.num_bytes for slot in slots.values())
        allocation = self.allocator.assign(num_bytes)
        if isinstance(allocation, Oversized):
            return allocation
        grant = Grant(allocation, num_bytes, room, chunk, slots, now)
        self._by_id[grant.alloc_id] = grant
        self._unready[grant.alloc_id] = grant
        self._account(grant, grant.num_bytes)
        return grant

    def end(self, grant: Grant) -> None:
        """Free the region: it was consumed, or released on proof."""
        assert not grant.ended
        assert all(slot.quiet and slot.copies == 0 for slot in grant.slots.values())
        grant.ended = True
        del self._by_id[grant.alloc_id]
        self._unready.pop(grant.alloc_id, None)
        freed = self.allocator.free(grant.alloc_id)
        assert freed
        self._account(grant, -grant.num_bytes)

    def newly_ready(self, now: float) -> Iterator[Grant]:
        """Grants that the true watermark lets pass since the last call. Readiness follows the order of granting."""
        watermark = self.allocator.get_watermark()
        while self._unready:
            grant = next(iter(self._unready.values()))
            if not is_watermark_ready(watermark, grant.allocation.round, grant.end):
                return
            del self._unready[grant.alloc_id]
            grant.ready_since = now
            yield grant

    def _account(self, grant: Grant, num_bytes: int) -> None:
        group = grant.room.group
        self.live_bytes += num_bytes
        self.live_bytes_of[group] += num_bytes
        if not self.live_bytes_of[group]:
            del self.live_bytes_of[group]

    def get(self, alloc_id: int) -> Grant | None:
        """The live grant of that id."""
        return self._by_id.get(alloc_id)

    def oldest(self) -> Grant | None:
        """The grant that pins the watermark."""
        oldest = self.allocator.oldest()
        return None if oldest is None else self._by_id[oldest]

    def __iter__(self) -> Iterator[Grant]:
        return iter(tuple(self._by_id.values()))

    def __len__(self) -> int:
        return len(self._by_id)
