"""KV pools whose bytes this process cannot touch, or should not: the engine brings the copies, for example on a GPU.

With such a pool the ``shm`` and ``zmq`` planes work as with any other: where a daemon would copy between pages and a staged
block in host memory, it calls the engine's function instead. The block's order is that of ``protocol.layout``: the parts of
``writer`` one after the other, each ``[tokens, heads, width]`` of one tensor of one layer.
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np

from protocol.layout import PageRun, RankLayout, WriterSlice
from runtime.pool import Bytes, KvPool
from runtime.pool_layout import PoolError, arrange_pool


class CopyTokens(Protocol):
    """Copies room tokens ``[token_start, + num_tokens)`` of one writer's slice between the pages of ``run`` and ``block``.

    A gather fills ``block``, a scatter reads it and must not keep it. Called in a worker thread, several at once; the copy is
    complete when the call returns (a stream of a device is to be waited for). What it raises fails the write or the room.
    """

    def __call__(self, writer: WriterSlice, run: PageRun, token_start: int, num_tokens: int, block: memoryview) -> None:
        """Copy."""


class ForeignPool(KvPool):
    """Pages of ``page_size`` tokens, wherever they are. A prefill rank needs ``gather``, a decode rank ``scatter``.

    ``closed`` is called once when the daemon lets go of the pool. Raises ``PoolError`` for a rank or sizes that make no sense.
    """

    def __init__(
        self,
        rank: RankLayout,
        page_size: int,
        num_pages: int,
        *,
        gather: CopyTokens | None = None,
        scatter: CopyTokens | None = None,
        closed: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(np.empty(0, np.uint8), arrange_pool(rank, page_size, num_pages))
        self._gather = gather
        self._scatter = scatter
        self._closed = closed

    @property
    def memory(self) -> Bytes:
        """There is none to be had. Raises ``PoolError``."""
        raise PoolError(["this pool's memory is the engine's: only its gather and scatter reach it"])

    @property
    def gather(self) -> CopyTokens:
        """Pages to block. Raises ``PoolError`` if the engine brought none."""
        if self._gather is None:
            raise PoolError(["this pool brings no gather: it cannot serve a prefill rank"])
        return self._gather

    @property
    def scatter(self) -> CopyTokens:
        """Block to pages. Raises ``PoolError`` if the engine brought none."""
        if self._scatter is None:
            raise PoolError(["this pool brings no scatter: it cannot serve a decode rank"])
        return self._scatter

    def close(self) -> None:
        """Let go of the pool, and say so."""
        super().close()
        closed, self._closed = self._closed, None
        if closed is not None:
            closed()
