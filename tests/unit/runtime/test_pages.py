"""Page runs, and copies of any arrangement against a copy made one row at a time."""

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.layout import ModelLayout, PageRun, RankLayout, SlicePart, TensorSpec, local_heads
from runtime.pages import CopyPlan, PageRunError, TokenRun, check_page_run, token_runs
from runtime.pool import KvPool
from runtime.pool_layout import Arrangement, PoolLayout, PoolTensor, arrange_pool


def test_consecutive_pages_merge_into_one_run() -> None:
    """Three pages in a row and two elsewhere are two runs, cut to the tokens asked for."""
    run = PageRun((4, 5, 6, 1, 2), first_token=3)
    assert list(token_runs(run, 4, 8, 0, 17)) == [TokenRun(4, 3, 9), TokenRun(1, 0, 8)]
    assert list(token_runs(run, 4, 8, 2, 8)) == [TokenRun(5, 1, 7), TokenRun(1, 0, 1)]
    assert list(token_runs(run, 4, 8, 6, 2)) == [TokenRun(6, 1, 2)]
    assert list(token_runs(run, 4, 8, 3, 0)) == []


@settings(max_examples=60)
@given(
    st.randoms(use_true_random=False), st.sampled_from([1, 2, 16]), st.integers(0, 40), st.integers(0, 60), st.integers(0, 60)
)
def test_runs_name_each_token_where_the_page_list_puts_it(
    random: Random, page_size: int, first: int, start: int, count: int
) -> None:
    """Expanding the runs gives the same (page, token) for every room token as looking each one up."""
    pages = list(range(200))
    random.shuffle(pages)
    if random.random() < 0.5:
        pages.sort(key=lambda page: page // 7 % 3)
    run = PageRun(tuple(pages), first)
    found = [
        divmod(part.page * page_size + part.first + at, page_size)
        for part in token_runs(run, page_size, 200, start, count)
        for at in range(part.tokens)
    ]
    assert found == [(pages[at // page_size], at % page_size) for at in range(first + start, first + start + count)]


@pytest.mark.parametrize(
    ("run", "start", "count", "complaint"),
    [
        (PageRun((0, 1)), 0, 9, "tokens 0 to 8 are not in 2 pages of 4"),
        (PageRun((0, 1), 7), 1, 1, "tokens 8 to 8 are not in 2 pages of 4"),
        (PageRun((0, 1), -9), 1, 1, "tokens -8 to -8 are not in"),
        (PageRun((6, 7, 8)), 0, 12, "pages 6 to 8 are not all in the pool, expected 0 to 7"),
        (PageRun((-1,)), 0, 1, "pages -1 to -1 are not all in the pool"),
    ],
)
def test_pages_that_do_not_hold_the_tokens_are_refused(run: PageRun, start: int, count: int, complaint: str) -> None:
    """Short lists, negative starts and pages outside the pool are named, never clipped."""
    with pytest.raises(PageRunError, match=complaint):
        list(token_runs(run, 4, 8, start, count))


LAYOUT = arrange_pool(RankLayout(ModelLayout(((TensorSpec("kv", 2, 8, "x"),),)), 0, 1, 0, 1, (0, 1)), page_size=4, num_pages=8)


@pytest.mark.parametrize(
    ("run", "count", "complaint"),
    [
        (PageRun((0, 1), -1), 4, "first_token is -1"),
        (PageRun((0, 1), 1), 8, "2 pages of 4 tokens do not hold 8 tokens from token 1 on"),
        (PageRun((0, 8)), 8, "page 8 is not in the pool, expected 0 to 7"),
        (PageRun((-1, 0)), 8, "page -1 is not in the pool"),
        (PageRun((3, 3)), 8, "a page is listed twice"),
    ],
)
def test_an_engines_page_list_is_checked_before_it_is_used(run: PageRun, count: int, complaint: str) -> None:
    """What an engine registers is refused with the number that is wrong; a right one passes."""
    check_page_run(LAYOUT, PageRun((7, 0), 3), 5)
    check_page_run(LAYOUT, PageRun(()), 0)
    with pytest.raises(PageRunError, match=complaint):
        check_page_run(LAYOUT, run, count)


# --- copies -----------------------------------------------------------------------------------------------------------


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


@settings(max_examples=80)
@given(
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
    random: Random,
    model: ModelLayout,
    page_size: int,
    order: Arrangement | None,
    shuffled: bool,
    first: int,
    start: int,
    count: int,
) -> None:
    """Any arrangement, page size, fragmentation and part of the heads: reading is exact, writing changes only its own bytes."""
    pages = list(range(120))
    if shuffled:
        random.shuffle(pages)
    run = PageRun(tuple(pages), first)
    rank = RankLayout(model, 0, 1, 0, 1, (0, len(model.layers)))
    layout = arrange_pool(rank, page_size, 120, order) if order else scattered_layout(rank, page_size, 120, random)
    content = np.random.default_rng(random.randrange(2**32)).integers(0, 256, layout.total_bytes, np.uint8)
    pool = KvPool.over(content, layout)
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


def test_wrong_sizes_and_pages_change_nothing() -> None:
    """A block of another size or a page outside the pool is refused before the first byte is copied."""
    pool = KvPool.over(bytearray(LAYOUT.total_bytes), LAYOUT)
    plan = CopyPlan(pool, [(SlicePart(0, 0, 0, 0, 2, 16), 0)])
    with pytest.raises(ValueError, match="block has 100 bytes, expected 8 tokens of 16"):
        plan.write(PageRun((0, 1)), 0, 8, memoryview(b"x" * 100))
    with pytest.raises(PageRunError):
        plan.write(PageRun((0, 9)), 0, 8, memoryview(b"x" * 128))
    assert not pool.memory.any()


def test_an_empty_slice_copies_nothing() -> None:
    """A writer without parts has an empty block, and that is fine."""
    pool = KvPool.over(bytearray(LAYOUT.total_bytes), LAYOUT)
    CopyPlan(pool, []).read(PageRun((0,)), 0, 3, memoryview(b""))
