"""The staging ring of one decode rank: what is granted, what is free, and where the oldest live grant stands.

Rules, and why:

1. A grant is contiguous. One that does not fit between ``head`` and the end of the ring moves whole to offset 0 of the next
   round, so that a writer needs one address and a reader one view.
2. ``assign`` never waits. It overcommits: rounds far ahead may be granted, and the writer's gate holds each write back until
   the watermark proves its place empty. Safety is therefore one comparison (``protocol/watermark.py``) and not a lock.
3. The watermark is derived from the oldest live grant and from nothing else, so it cannot disagree with what is live.
4. When the last live grant is freed the ring restarts: round + 1, head 0. A parked head would make a grant wait for bytes that
   nobody holds: with 100 bytes, 60 granted and freed, a grant of 70 starts at offset 0 of the next round and would wait for a
   watermark of 70 that no free will ever produce (https://github.com/sgl-project/sglang/pull/37166).

::

    round r       |........|== oldest ==|== b ==|..freed..|== d ==|........|
                  0        tail                                   head     total_size
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

from protocol.watermark import Watermark


class Allocation(NamedTuple):
    """A granted region: it occupies bytes ``[offset, offset + n)`` of ``round``."""

    alloc_id: int
    offset: int
    round: int


@dataclass(frozen=True, slots=True)
class Oversized:
    """The region can never exist in this ring: permanent, and no reason to wait."""

    requested_bytes: int
    total_bytes: int


class StagingAllocator:
    """Grants contiguous regions of a ring of ``total_size`` bytes; every verb is O(1) at any number of live grants."""

    def __init__(self, total_size: int, first_id: int = 1) -> None:
        if total_size <= 0:
            raise ValueError(f"total_size: expected a positive number of bytes, got {total_size}")
        self.total_size = total_size
        self.head = 0
        self.round = 0
        # In the order of granting. A plain dict would scan the holes that frees leave before its first entry.
        self._live: OrderedDict[int, Allocation] = OrderedDict()
        self._next_id = first_id

    def assign(self, n: int) -> Allocation | Oversized:
        """Grant ``n`` bytes, or say that no ring of this size ever can. Raises ``ValueError`` if ``n`` is not positive."""
        if n <= 0:
            raise ValueError(f"n: expected a positive number of bytes, got {n}")
        if n > self.total_size:
            return Oversized(n, self.total_size)
        if n > self.total_size - self.head:
            self.round += 1
            self.head = 0
        allocation = Allocation(self._next_id, self.head, self.round)
        self._next_id += 1
        self.head += n
        self._live[allocation.alloc_id] = allocation
        return allocation

    def successor(self) -> "StagingAllocator":
        """An empty ring of the same size and rules whose ids continue, so that no id ever names two grants."""
        return type(self)(self.total_size, self._next_id)

    def free(self, alloc_id: int) -> bool:
        """Take a region back. Unknown and repeated ids change nothing and return ``False``."""
        if self._live.pop(alloc_id, None) is None:
            return False
        if not self._live:
            self._restart()
        return True

    def get_watermark(self) -> Watermark:
        """The place of the oldest live grant, or of ``head`` if nothing is live."""
        if self._live:
            oldest = next(iter(self._live.values()))
            return Watermark(oldest.round, oldest.offset)
        return Watermark(self.round, self.head)

    @property
    def live_count(self) -> int:
        """How many grants are live."""
        return len(self._live)

    def oldest(self) -> int | None:
        """The ``alloc_id`` that pins the watermark, or ``None`` if nothing is live."""
        return next(iter(self._live), None)

    def _restart(self) -> None:
        self.round += 1
        self.head = 0
