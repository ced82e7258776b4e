"""Copies of any arrangement against a copy made one row at a time."""

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.layout import ModelLayout, PageRun, RankLayout, SlicePart, TensorSpec, local_heads
from runtime.page_runs import PageRunError
from runtime.pages import CopyPlan
from runtime.pool import KvPool
from runtime.pool_layout import Arrangement, PoolLayout, PoolTensor, arrange_pool

LAYOUT = arrange_pool(RankLayout(ModelLayout(((TensorSpec("kv", 2, 8, "x"),),)), 0, 1, 0, 1, (0, 1)), page_size=4, num_pages=8)


def row_by_row(pool: KvPool, parts: list[tuple[SlicePart, int]], run: PageRun, start: int, count: int) -> bytes:
    """The staged block, put together one row at a time."""
    size = pool.layout.page_size
    places = [divmod(run.first_token + at, size) for at in range(start, start + count)]
    rows = (
        pool.view(part.layer, part.tensor)[run.pages[page], slot, head : head + part.head_count].tobytes()
        for part, head in parts
        for page, slot in places
    )
    return b"".join(rows)


def scattered_layout(rank: RankLayout, page_size: int, num_pages: int, random: Random) -> PoolLayout:
    """Tensors in random order, at random distances, each with its own random axis order and gaps."""
    places = []
    offset = 0
    keys = [(layer, tensor) for layer, specs in enumerate(rank.model.layers) for tensor in range(len(specs))]
    random.shuffle(keys)
    for layer, tensor in keys:
        spec = rank.model.layers[layer][tensor]
        counts = [("page", num_pages), ("token", page_size), ("head", local_heads(spec, rank.tp_size))]
        random.shuffle(counts)
        extent, strides = spec.width, {}
        for axis, count in counts:
            strides[axis] = extent + random.choice([0, 0, 3])
            extent = strides[axis] * count
        offset += random.choice([0, 5])
        places.append(PoolTensor(layer, tensor, offset, strides["page"], strides["token"], strides["head"]))
        offset += extent
    return PoolLayout(rank, page_size, num_pages, tuple(places), offset)


MODELS = [
    ModelLayout(((TensorSpec("k", 4, 32, "x"), TensorSpec("v", 4, 32, "x")),) * 3),
    ModelLayout(((TensorSpec("k", 2, 1040, "x"), TensorSpec("v", 2, 24, "x")), (TensorSpec("kv", 4, 7, "x"),))),
    ModelLayout(((TensorSpec("latent", 1, 37, "x", sharded=False),),) * 2),
]


@settings(max_examples=160)
@given(
    compiled=st.booleans(),
    random=st.randoms(use_true_random=False),
    model=st.sampled_from(MODELS),
    page_size=st.sampled_from([1, 3, 16]),
    order=st.sampled_from([*Arrangement, None]),
    shuffled=st.booleans(),
    first=st.integers(0, 20),
    start=st.integers(0, 20),
    count=st.integers(0, 70),
)
def test_a_plan_copies_the_same_bytes_as_one_row_at_a_time(
    compiled: bool,
    random: Random,
    model: ModelLayout,
    page_size: int,
    order: Arrangement | None,
    shuffled: bool,
    first: int,
    start: int,
    count: int,
) -> None:
    """Any arrangement, page size, fragmentation and part of the heads: reading is exact, writing changes only its own bytes.

    With numpy and with the compiled loop.
    """
    pages = list(range(120))
    if shuffled:
        random.shuffle(pages)
    run = PageRun(tuple(pages), first)
    rank = RankLayout(model, 0, 1, 0, 1, (0, len(model.layers)))
    layout = arrange_pool(rank, page_size, 120, order) if order else scattered_layout(rank, page_size, 120, random)
    content = np.random.default_rng(random.randrange(2**32)).integers(0, 256, layout.total_bytes, np.uint8)
    pool = KvPool.over(content, layout)
    pool.compiled_copies = compiled
    parts = []
    for layer, specs in enumerate(model.layers):
        for tensor, spec in enumerate(specs):
            head = random.randrange(spec.heads)
            heads = random.randint(1, spec.heads - head)
            parts.append((SlicePart(layer, tensor, head, 0, heads, heads * spec.width), head))
    expected = row_by_row(pool, parts, run, start, count)
    block = bytearray(len(expected))
    CopyPlan(pool, parts).read(run, start, count, memoryview(block))
    assert bytes(block) == expected

    before = content.copy()
    CopyPlan(pool, parts).write(run, start, count, memoryview(bytes(255 - byte for byte in expected)))
    assert row_by_row(pool, parts, run, start, count) == bytes(255 - byte for byte in expected)
    assert np.count_nonzero(before != content) == len(expected)


@pytest.mark.parametrize("compiled", [False, True])
def test_wrong_sizes_and_pages_change_nothing(*, compiled: bool) -> None:
    """A block of another size or a page outside the pool is refused before the first byte is copied."""
    pool = KvPool.over(bytearray(LAYOUT.total_bytes), LAYOUT)
    pool.compiled_copies = compiled
    plan = CopyPlan(pool, [(SlicePart(0, 0, 0, 0, 2, 16), 0)])
    with pytest.raises(ValueError, match="block has 100 bytes, expected 8 tokens of 16"):
        plan.write(PageRun((0, 1)), 0, 8, memoryview(b"x" * 100))
    with pytest.raises(PageRunError):
        plan.write(PageRun((0, 9)), 0, 8, memoryview(b"x" * 128))
    assert not pool.memory.any()


@pytest.mark.parametrize("compiled", [False, True])
def test_an_empty_slice_copies_nothing(*, compiled: bool) -> None:
    """A writer without parts has an empty block, and that is fine."""
    pool = KvPool.over(bytearray(LAYOUT.total_bytes), LAYOUT)
    pool.compiled_copies = compiled
    CopyPlan(pool, []).read(PageRun((0,)), 0, 3, memoryview(b""))
