"""Pools are as large as the workload needs, and laid out differently on the two sides."""

from pathlib import Path

from lab.pools import PoolSet, PoolSizes, pool_sizes
from lab.presets import PRESETS
from lab.shape import PairShape
from lab.workload import Request

SHAPE = PairShape(PRESETS["tiny"].model, 2, 2, 2, "shm", 64, 0, prefill_page_size=16, decode_page_size=8)


def test_sizes_hold_the_largest_requests_at_once() -> None:
    """The pages suffice for the two largest requests together, prefixes within the first page included."""
    requests = (
        Request(0, "a", 16, 0),
        Request(1, "b", 32, 0, source_first_token=1),
        Request(2, "c", 64, 1, destination_first_token=7),
    )
    assert pool_sizes(SHAPE, requests, concurrency=2) == PoolSizes(prefill_pages=3 + 4, decode_pages=4 + 9)


def test_every_rank_gets_a_pool_and_every_group_its_pages(tmp_path: Path) -> None:
    """One file per rank, one page list per prefill group and one for all decode ranks; K and V lie apart or fused."""
    with PoolSet.create(tmp_path, SHAPE, PoolSizes(3, 5)) as pools:
        assert [pool.layout.num_pages for pool in pools.prefill] == [3, 3]
        assert [pool.layout.num_pages for pool in pools.decode] == [5, 5]
        assert [pages.num_pages for pages in pools.prefill_pages] == [3, 3]
        assert pools.decode_pages.num_pages == 5
        assert len(list(tmp_path.iterdir())) == 4
        k, v = pools.prefill[0].layout.tensors[:2]
        assert v.offset - k.offset == 3 * k.page_stride, "V after all pages of K"
        k, v = pools.decode[0].layout.tensors[:2]
        assert 2 * (v.offset - k.offset) == k.page_stride, "V behind K in the same page"
