"""What became of the latest grants: enough to draw the ring's last minutes, and to say how long each stage of a chunk took.

A record of the past and nothing else: no decision of the machine looks at it. It keeps the latest ``MAX_RECORDS``.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Final

from decode_service.grants import Grant

MAX_RECORDS: Final = 2048


class GrantOutcome(StrEnum):
    """How a grant ended."""

    CONSUMED = "consumed"
    """Its bytes are in their pages."""
    RELEASED = "released"
    """Closed early, and proven to be quiet."""
    DISCARDED = "discarded"
    """It went with its region."""


@dataclass(frozen=True, slots=True)
class GrantRecord:
    """One grant that has ended. Times are seconds of the machine's clock; ``None`` if it did not come to that."""

    alloc_id: int
    room: str
    group: str
    chunk: int
    round: int
    offset: int
    end: int
    granted_at: float
    ready_at: float | None
    """The true watermark let it be written."""
    written_at: float | None
    """The last of its writers had written."""
    closed_at: float | None
    ended_at: float
    outcome: GrantOutcome
    asked_at: float | None = None
    """The first of its writers asked."""
    traceparent: str | None = None

    @property
    def num_bytes(self) -> int:
        """Size of its region."""
        return self.end - self.offset


class GrantHistory:
    """The latest records, oldest first, and how many there ever were."""

    def __init__(self) -> None:
        self._records: deque[GrantRecord] = deque(maxlen=MAX_RECORDS)
        self.total = 0

    def add(self, grant: Grant, outcome: GrantOutcome, now: float) -> None:
        """Write down a grant that has just ended."""
        chunk = grant.room.chunks.get(grant.chunk)
        self.total += 1
        self._records.append(
            GrantRecord(
                alloc_id=grant.alloc_id,
                room=grant.room.id,
                group=grant.room.group,
                chunk=grant.chunk,
                round=grant.allocation.round,
                offset=grant.allocation.offset,
                end=grant.end,
                granted_at=grant.granted_at,
                ready_at=grant.ready_since,
                written_at=grant.written_at,
                closed_at=grant.closed_at,
                ended_at=now,
                outcome=outcome,
                asked_at=None if chunk is None else chunk.since,
                traceparent=grant.room.traceparent,
            )
        )

    def after(self, total: int) -> Iterator[GrantRecord]:
        """The records that came after the first ``total`` of them, as far as they are still kept."""
        kept = len(self._records)
        return islice(self._records, max(0, kept - (self.total - total)), kept)

    def last_end(self) -> float | None:
        """When the latest grant ended."""
        return self._records[-1].ended_at if self._records else None

    def __iter__(self) -> Iterator[GrantRecord]:
        return iter(tuple(self._records))

    def __len__(self) -> int:
        return len(self._records)
