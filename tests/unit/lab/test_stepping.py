"""A stepped copy stops exactly half-way, says so, and ends with the product's bytes."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from lab.stepping import DONE, HALF, CopySteps, SteppedGather
from prefill_service.gather import gather
from protocol.layout import ModelLayout, PageRun, RankLayout, TensorSpec, writer_slice
from runtime.pool import KvPool
from runtime.pool_layout import arrange_pool

RANK = RankLayout(ModelLayout(((TensorSpec("k", 2, 8, "uint8"),),)), 0, 1, 0, 1, (0, 1))
TOKENS = 6


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[KvPool]:
    """A pool of two pages whose bytes all differ from zero."""
    with KvPool.create(tmp_path / "pool", arrange_pool(RANK, page_size=4, num_pages=2)) as made:
        made.memory[:] = np.arange(1, made.memory.nbytes + 1, dtype=np.uint8)
        yield made


def test_a_copy_waits_half_way(tmp_path: Path, pool: KvPool) -> None:
    """Until it is told to go on only the first half is there; then all of it is, equal to the product's gather."""
    steps = CopySteps(tmp_path / "steps")
    layout, source = writer_slice(RANK, RANK), PageRun((0, 1))
    expected, found = bytearray(layout.token_bytes * TOKENS), bytearray(layout.token_bytes * TOKENS)
    gather(pool, layout, source, 0, TOKENS, memoryview(expected))
    stepped = SteppedGather(steps.directory)
    copy = threading.Thread(target=stepped, args=(pool, layout, source, 0, TOKENS, memoryview(found)))
    copy.start()
    asyncio.run(steps.until(HALF, 1, 30.0, "half"))
    half = len(expected) // 2
    assert found[:half] == expected[:half]
    assert not any(found[half:])
    assert steps.seen(DONE) == 0
    steps.go(1)
    copy.join()
    assert steps.seen(DONE) == 1
    assert found == expected
    stepped.close()
    steps.close()
