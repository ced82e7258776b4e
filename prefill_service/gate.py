"""May this grant be written now, and if not, why.

One gate per session. Its rules:

1. Only the largest watermark counts. It starts at ``(0, 0)``; a smaller or equal one is old news and changes nothing, so frames
   may be lost, repeated and reordered at will.
2. A grant passes if ``is_watermark_ready`` says so. For ``round > 0`` that is ``watermark >= (round - 1, end)``.
3. Rule 2 makes readiness monotone in ``(round, end)``, so the grants that wait form a heap, and a new watermark looks at those
   it lets pass and at one more. A grant that waits never holds up one that need not.
4. The gate dies with its session: what a former life of D said can never open a grant of the next one.
"""

import heapq
from collections.abc import Hashable
from itertools import count
from typing import Generic, NamedTuple, TypeVar

from protocol.watermark import START, Watermark, is_watermark_ready

K = TypeVar("K", bound=Hashable)

_REBUILD_AT = 64


class Wait(NamedTuple):
    """Why a grant may not be written: it needs a watermark of at least ``needs``, and ``has`` is the newest one heard."""

    needs: Watermark
    has: Watermark

    def __str__(self) -> str:
        return f"needs watermark ({self.needs.round}, {self.needs.tail}), has ({self.has.round}, {self.has.tail})"


class WatermarkGate(Generic[K]):
    """The stored watermark of one session and the grants that wait for a larger one, each under a key of the caller's."""

    def __init__(self) -> None:
        self._watermark = START
        self._held: dict[K, tuple[int, int, int]] = {}
        self._heap: list[tuple[int, int, int, K]] = []
        self._serial = count()

    def __len__(self) -> int:
        return len(self._held)

    @property
    def watermark(self) -> Watermark:
        """The largest watermark heard in this session."""
        return self._watermark

    def admit(self, key: K, round: int, end: int) -> bool:
        """True if this grant may be written now; otherwise it is held under ``key`` until ``advance`` returns it."""
        assert key not in self._held
        if is_watermark_ready(self._watermark, round, end):
            return True
        entry = (round, end, next(self._serial))
        self._held[key] = entry
        heapq.heappush(self._heap, (*entry, key))
        self._rebuild_if_stale()
        return False

    def advance(self, watermark: Watermark) -> list[K]:
        """Take note of a watermark; the held grants it lets pass, oldest first. They are held no more."""
        if watermark <= self._watermark:
            return []
        self._watermark = watermark
        passed: list[K] = []
        while (key := self.first()) is not None and self.explain(*self._held[key][:2]) is None:
            del self._held[key]
            passed.append(key)
        return passed

    def withdraw(self, key: K) -> None:
        """Hold this grant no more; unknown keys change nothing."""
        self._held.pop(key, None)

    def first(self) -> K | None:
        """The held grant that will pass first, or ``None``."""
        while self._heap and self._held.get(self._heap[0][3]) != self._heap[0][:3]:
            heapq.heappop(self._heap)
        return self._heap[0][3] if self._heap else None

    def explain(self, round: int, end: int) -> Wait | None:
        """What a grant that ends at byte ``end`` of ``round`` waits for; ``None`` if it may be written."""
        if is_watermark_ready(self._watermark, round, end):
            return None
        return Wait(Watermark(round - 1, end), self._watermark)

    def _rebuild_if_stale(self) -> None:
        if len(self._heap) > _REBUILD_AT + 2 * len(self._held):
            self._heap = [(*entry, key) for key, entry in self._held.items()]
            heapq.heapify(self._heap)
