"""A pool that brings its own copies."""

import pytest

from decode_service.scatter import scatter
from lab.presets import PRESETS
from prefill_service.gather import gather
from protocol.layout import PageRun, RankLayout, WriterSlice, writer_slice
from runtime.foreign_pool import ForeignPool
from runtime.pool_layout import PoolError

RANK = RankLayout(PRESETS["tiny"].model, 0, 1, 0, 1, (0, 4))
SLICE = writer_slice(RANK, RANK)
RUN = PageRun((1, 0), 2)
Call = tuple[WriterSlice, PageRun, int, int, int]


def test_the_engine_s_copies_are_called_with_all_they_need() -> None:
    """Gather and scatter go to the engine with slice, pages, tokens and block; nothing else touches the pages."""
    calls: list[Call] = []

    def copy(writer: WriterSlice, run: PageRun, token_start: int, num_tokens: int, block: memoryview) -> None:
        calls.append((writer, run, token_start, num_tokens, block.nbytes))

    pool = ForeignPool(RANK, 4, 6, gather=copy, scatter=copy)
    block = memoryview(bytearray(3 * SLICE.token_bytes))
    gather(pool, SLICE, RUN, 1, 3, block)
    scatter(pool, SLICE, RUN, 1, 3, block)
    assert calls == [(SLICE, RUN, 1, 3, block.nbytes)] * 2


def test_what_is_missing_is_said() -> None:
    """A pool without gather cannot serve a prefill rank, one without scatter no decode rank, and neither gives bytes."""
    pool = ForeignPool(RANK, 4, 6)
    for verb, side in (("gather", "prefill"), ("scatter", "decode")):
        with pytest.raises(PoolError, match=f"brings no {verb}: it cannot serve a {side} rank"):
            getattr(pool, verb)
    for name in ("memory", "descriptor"):
        with pytest.raises(PoolError):
            getattr(pool, name)
    with pytest.raises(PoolError, match="page_size is 0"):
        ForeignPool(RANK, 0, 6)


def test_closing_is_told_once() -> None:
    """The engine learns when its pool is let go."""
    closed: list[bool] = []
    pool = ForeignPool(RANK, 4, 6, closed=lambda: closed.append(True))
    pool.close()
    pool.close()
    assert closed == [True]
