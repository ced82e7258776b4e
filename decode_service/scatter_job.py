"""What a worker does for one ``ScatterChunk``: verify every slice, and only if all are right copy them into the pages."""

from typing import Protocol

import xxhash

from decode_service.outputs import ReadySlice, ScatterChunk
from protocol.layout import PageRun, WriterKey, WriterSlice
from runtime.pool import KvPool


class Scatter(Protocol):
    """Spreads one writer's block over the pages; ``decode_service.scatter.scatter`` is the one that daemons use."""

    def __call__(
        self, pool: KvPool, writer: WriterSlice, destination: PageRun, token_start: int, num_tokens: int, block: memoryview
    ) -> None:
        """Copy."""


def scatter_chunk(
    pool: KvPool, ring: memoryview, chunk: ScatterChunk, scatter: Scatter, *, verify: bool
) -> tuple[WriterKey, ...]:
    """The writers whose bytes are not what they promised, in which case no page was touched; else the pages are filled.

    With ``verify`` off no checksum is looked at.
    """
    bad = tuple(ready.layout.writer for ready in chunk.slices if verify and not _is_intact(ring, ready))
    if bad:
        return bad
    for ready in chunk.slices:
        block = ring[ready.offset : ready.offset + ready.num_bytes]
        scatter(pool, ready.layout, chunk.destination, chunk.token_start, chunk.num_tokens, block)
    return ()


def _is_intact(ring: memoryview, ready: ReadySlice) -> bool:
    if ready.checksum is None:
        return True
    return xxhash.xxh3_64_intdigest(ring[ready.offset : ready.offset + ready.num_bytes]) == ready.checksum
