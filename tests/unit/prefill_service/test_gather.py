"""Gathering a writer's slice out of a pool in shared memory."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from prefill_service.gather import gather
from protocol.layout import ModelLayout, PageRun, RankLayout, TensorSpec, part_offsets, writer_slice
from runtime.page_runs import PageRunError
from runtime.pool import KvPool
from runtime.pool_layout import Arrangement, arrange_pool

MODEL = ModelLayout(((TensorSpec("k", 4, 16, "x"), TensorSpec("v", 4, 8, "x")),) * 2)
PREFILL = RankLayout(MODEL, 0, 2, 0, 1, (0, 2))
SLICE = writer_slice(PREFILL, RankLayout(MODEL, 1, 4, 0, 1, (0, 2)))
RUN = PageRun((5, 6, 1), first_token=2)


@pytest.mark.parametrize("order", Arrangement)
def test_each_part_lies_token_major_at_its_offset(order: Arrangement) -> None:
    """Decode rank 1 of TP 4 gets head 1 of prefill rank 0: each part's block holds that head of the tokens in order."""
    with TemporaryDirectory(dir="/dev/shm") as directory:
        pool = KvPool.create(Path(directory) / "pool", arrange_pool(PREFILL, 4, 8, order))
        pool.memory[...] = np.random.default_rng(1).integers(0, 256, pool.memory.size, np.uint8)
        out = bytearray(7 * SLICE.token_bytes)
        gather(pool, SLICE, RUN, 1, 7, memoryview(out))
        places = [(5, 3), (6, 0), (6, 1), (6, 2), (6, 3), (1, 0), (1, 1)]
        for part, offset in zip(SLICE.parts, part_offsets(SLICE.parts, 7), strict=True):
            view = pool.view(part.layer, part.tensor)
            expected = b"".join(view[page, slot, 1].tobytes() for page, slot in places)
            assert out[offset : offset + 7 * part.row_bytes] == expected
        pool.close()


def test_a_gather_fills_exactly_its_block() -> None:
    """Bytes before and behind the block, in the same ring, stay as they were."""
    layout = arrange_pool(PREFILL, 4, 8)
    pool = KvPool.over(np.full(layout.total_bytes, 7, np.uint8), layout)
    ring = bytearray(10 + 3 * SLICE.token_bytes + 10)
    gather(pool, SLICE, RUN, 0, 3, memoryview(ring)[10:-10])
    assert ring == bytes(10) + b"\7" * (3 * SLICE.token_bytes) + bytes(10)


def test_tokens_past_the_pages_are_refused_and_nothing_is_written() -> None:
    """A chunk that the page list does not hold is an error before the first byte."""
    layout = arrange_pool(PREFILL, 4, 8)
    pool = KvPool.over(np.full(layout.total_bytes, 7, np.uint8), layout)
    out = bytearray(11 * SLICE.token_bytes)
    with pytest.raises(PageRunError, match="tokens 2 to 12 are not in 3 pages of 4"):
        gather(pool, SLICE, RUN, 0, 11, memoryview(out))
    assert not any(out)
