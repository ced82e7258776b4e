"""A cache in pages holds what a cache in one array holds, and its digest covers every byte."""

import numpy as np

from lab.model.config import MODELS
from lab.model.kv import PagedKv, PoolViews, WholeKv
from protocol.layout import PageRun, RankLayout
from runtime.pool import KvPool
from runtime.pool_layout import arrange_pool

CONFIG = MODELS["gqa"]
RANK = RankLayout(CONFIG.layout(), 1, 4, 0, 1, (0, CONFIG.layers))
HEADS = slice(2, 4)


def filled() -> tuple[KvPool, PagedKv, WholeKv]:
    """The same sequence of 20 tokens in pages of rank 1 of 4 and as a whole."""
    layout = arrange_pool(RANK, 8, 6)
    pool = KvPool.over(bytearray(layout.total_bytes), layout)
    paged, whole = PagedKv(PoolViews(pool), PageRun((5, 0, 3), 2)), WholeKv(CONFIG, 20)
    random = np.random.default_rng(0)
    for layer in range(CONFIG.layers):
        both = tuple(random.integers(-127, 127, (20, CONFIG.kv_heads, CONFIG.head_dim)).astype(np.float64) for _ in range(2))
        whole.write(layer, 0, both)
        paged.write(layer, 0, tuple(tensor[:8, HEADS] for tensor in both))
        paged.write(layer, 8, tuple(tensor[8:, HEADS] for tensor in both))
    return pool, paged, whole


def test_pages_give_back_what_was_written() -> None:
    """In two writes across page edges, read in one piece, cut to the rank's heads."""
    _, paged, whole = filled()
    for layer in range(CONFIG.layers):
        for found, expected in zip(paged.read(layer, 17), whole.read(layer, 17), strict=True):
            assert np.array_equal(found, expected[:, HEADS])


def test_digests_agree_and_see_every_byte() -> None:
    """Equal bytes have equal digests; any changed byte of the sequence changes it, one behind its end does not."""
    pool, paged, whole = filled()
    right = whole.rank_digest(20, RANK)
    assert paged.digest(20) == right
    pool.view(1, 1)[3, 5, 1, 31] ^= 1
    assert paged.digest(20) != right
    pool.view(1, 1)[3, 5, 1, 31] ^= 1
    pool.view(1, 1)[3, 6, 1, 31] ^= 1
    assert paged.digest(20) == right
