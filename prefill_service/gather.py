"""KV pages to staged bytes: the prefill half of the copy."""

from protocol.layout import PageRun, WriterSlice
from runtime.foreign_pool import ForeignPool
from runtime.pages import CopyPlan
from runtime.pool import KvPool


def gather(pool: KvPool, writer: WriterSlice, source: PageRun, token_start: int, num_tokens: int, out: memoryview) -> None:
    """Fill ``out`` with room tokens ``[token_start, + num_tokens)`` of the slice, in the staged order of ``protocol.layout``.

    ``out`` has exactly ``num_tokens * writer.token_bytes`` bytes (else ``ValueError``); pages that do not hold those tokens are
    a ``PageRunError``, before anything is copied. The plan is kept with the pool for this very ``writer`` object: pass the
    same one for every chunk. Safe in several threads at once; long copies run without the GIL. A pool that brings its own
    gather is asked to use that.
    """
    if isinstance(pool, ForeignPool):
        pool.gather(writer, source, token_start, num_tokens, out)
        return
    plan = pool.plan("gather", writer, lambda: CopyPlan(pool, [(part, part.source_head) for part in writer.parts]))
    plan.read(source, token_start, num_tokens, out)
