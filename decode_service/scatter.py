"""Staged bytes to KV pages: the decode half of the copy."""

from protocol.layout import PageRun, WriterSlice
from runtime.foreign_pool import ForeignPool
from runtime.pages import CopyPlan
from runtime.pool import KvPool


def scatter(
    pool: KvPool, writer: WriterSlice, destination: PageRun, token_start: int, num_tokens: int, block: memoryview
) -> None:
    """Spread one writer's ``block`` over the pages of room tokens ``[token_start, + num_tokens)``.

    ``block`` has exactly ``num_tokens * writer.token_bytes`` bytes (else ``ValueError``); pages that do not hold those tokens
    are a ``PageRunError``, before anything is copied. The plan is kept with the pool for this very ``writer`` object: pass the
    same one for every chunk. Safe in several threads at once; long copies run without the GIL. A pool that brings its own
    scatter is asked to use that.
    """
    if isinstance(pool, ForeignPool):
        pool.scatter(writer, destination, token_start, num_tokens, block)
        return
    plan = pool.plan("scatter", writer, lambda: CopyPlan(pool, [(part, part.destination_head) for part in writer.parts]))
    plan.write(destination, token_start, num_tokens, block)
