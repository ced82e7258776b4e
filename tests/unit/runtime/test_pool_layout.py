"""Physical layouts: builders, and refusals that list every problem."""

from dataclasses import replace

import numpy as np
import pytest

from protocol.layout import ModelLayout, RankLayout, TensorSpec, rank_token_bytes
from runtime.pool import KvPool
from runtime.pool_layout import Arrangement, PoolError, PoolLayout, PoolTensor, arrange_pool, validate_pool_layout

MODEL = ModelLayout(
    (
        (TensorSpec("k", 8, 32, "bfloat16"), TensorSpec("v", 8, 32, "bfloat16")),
        (TensorSpec("k", 8, 32, "bfloat16"), TensorSpec("v", 8, 48, "bfloat16")),
        (TensorSpec("latent", 1, 20, "uint8", sharded=False),),
    )
)
RANK = RankLayout(MODEL, 1, 4, 0, 1, (0, 3))


@pytest.mark.parametrize("order", Arrangement)
def test_an_arrangement_gives_every_byte_to_exactly_one_place(order: Arrangement) -> None:
    """Writing a different number through every view covers the whole pool, and no view disturbs another."""
    layout = arrange_pool(RANK, page_size=3, num_pages=4, order=order)
    validate_pool_layout(layout)
    assert layout.total_bytes == 3 * 4 * rank_token_bytes(RANK)
    pool = KvPool.over(bytearray(layout.total_bytes), layout)
    for number, place in enumerate(layout.tensors, 1):
        pool.view(place.layer, place.tensor)[...] = number
    for number, place in enumerate(layout.tensors, 1):
        assert (pool.view(place.layer, place.tensor) == number).all()
    assert np.count_nonzero(pool.memory) == layout.total_bytes


@pytest.mark.parametrize(
    ("order", "strides"),
    [
        (Arrangement.TOKEN_MAJOR, (4 * 64, 64, 32)),
        (Arrangement.HEAD_MAJOR, (4 * 64, 32, 4 * 32)),
        (Arrangement.FUSED_PAGES, (2 * 4 * 64, 64, 32)),
        (Arrangement.FUSED_HEADS, (2 * 4 * 64, 2 * 64, 32)),
    ],
)
def test_strides_follow_the_axis_order(order: Arrangement, strides: tuple[int, int, int]) -> None:
    """Two heads of 32 bytes in pages of four tokens have the strides that the order's name says."""
    place = arrange_pool(RANK, page_size=4, num_pages=5, order=order).tensors[0]
    assert (place.page_stride, place.token_stride, place.head_stride) == strides


def test_a_stage_lays_out_only_its_layers_under_their_global_index() -> None:
    """A pipeline stage's pool names layers as the model does."""
    stage = RankLayout(MODEL, 0, 1, 1, 2, (0, 2, 3))
    assert [(place.layer, place.tensor) for place in arrange_pool(stage, 4, 4).tensors] == [(2, 0)]


GOOD = arrange_pool(RANK, page_size=4, num_pages=5)


def changed(index: int, **fields: int) -> PoolLayout:
    """``GOOD`` with one tensor's numbers replaced."""
    places = list(GOOD.tensors)
    places[index] = replace(places[index], **fields)
    return replace(GOOD, tensors=tuple(places))


@pytest.mark.parametrize(
    ("layout", "problem"),
    [
        (replace(GOOD, page_size=0), "page_size is 0, expected at least 1 token"),
        (replace(GOOD, num_pages=0), "num_pages is 0, expected at least 1"),
        (replace(GOOD, tensors=GOOD.tensors[1:]), "layer 0 tensor 0 is missing"),
        (replace(GOOD, tensors=(*GOOD.tensors, GOOD.tensors[0])), "layer 0 tensor 0 is listed 2 times"),
        (changed(0, layer=7), "layer 7 tensor 0 is not held by this rank"),
        (changed(0, token_stride=63), "token_stride 63 is less than the 64 bytes it must step over, so rows overlap"),
        (changed(0, page_stride=255), "page_stride 255 is less than the 256 bytes"),
        (changed(0, head_stride=0), "head_stride 0 is less than the 32 bytes"),
        (changed(0, head_stride=-32), "head_stride -32 is less than the 32 bytes"),
        (changed(0, offset=-1), "are outside the pool of"),
        (replace(GOOD, total_bytes=GOOD.total_bytes - 1), f"are outside the pool of {GOOD.total_bytes - 1} bytes"),
        (changed(1, offset=GOOD.tensors[0].offset), "layer 0 tensor 0 and layer 0 tensor 1 share bytes"),
        (changed(1, offset=GOOD.tensors[1].offset - 1), "layer 0 tensor 0 and layer 0 tensor 1 share bytes"),
        (replace(GOOD, rank=replace(RANK, tp_rank=9)), "tp_rank is 9, expected 0 to 3"),
    ],
)
def test_a_layout_that_cannot_be_is_refused_with_its_reason(layout: PoolLayout, problem: str) -> None:
    """Every kind of mistake in a layout is named with the tensor and the numbers concerned."""
    validate_pool_layout(GOOD)
    with pytest.raises(PoolError) as caught:
        validate_pool_layout(layout)
    assert any(problem in text for text in caught.value.problems), caught.value.problems


def test_all_problems_are_listed_at_once() -> None:
    """A missing tensor, a foreign one and a bad stride come in one error."""
    places = (replace(GOOD.tensors[0], layer=9), replace(GOOD.tensors[1], token_stride=60), *GOOD.tensors[2:])
    with pytest.raises(PoolError) as caught:
        validate_pool_layout(replace(GOOD, tensors=places))
    assert len(caught.value.problems) == 3


def test_a_long_list_of_problems_is_cut_in_the_text_and_whole_in_the_error() -> None:
    """Forty missing tensors make a readable message; the error object still holds them all."""
    rank = RankLayout(ModelLayout(((TensorSpec("kv", 1, 4, "x"),),) * 40), 0, 1, 0, 1, (0, 40))
    with pytest.raises(PoolError, match="and 20 more") as caught:
        validate_pool_layout(PoolLayout(rank, 1, 1, (), 1))
    assert len(caught.value.problems) == 40


def test_builders_refuse_what_makes_no_pool() -> None:
    """Page size, page count and the rank are checked before anything is laid out, all three together."""
    with pytest.raises(PoolError, match=r"tp_rank is 5.*page_size is 0.*num_pages is -1"):
        arrange_pool(replace(RANK, tp_rank=5), 0, -1)


def two(first: PoolTensor, second: PoolTensor, total: int) -> PoolLayout:
    """A rank of one layer with two tensors of one head of 16 bytes, pages of two tokens, four pages."""
    model = ModelLayout(((TensorSpec("k", 1, 16, "x"), TensorSpec("v", 1, 16, "x")),))
    return PoolLayout(RankLayout(model, 0, 1, 0, 1, (0, 1)), 2, 4, (first, second), total)


def test_interleaved_tensors_that_meet_nowhere_are_accepted() -> None:
    """Rows of two tensors may alternate, also when pages are not the outermost axis."""
    validate_pool_layout(two(PoolTensor(0, 0, 0, 64, 32, 0), PoolTensor(0, 1, 16, 64, 32, 0), 256))
    validate_pool_layout(two(PoolTensor(0, 0, 0, 32, 128, 0), PoolTensor(0, 1, 16, 32, 128, 0), 256))


@pytest.mark.parametrize("strides", [(64, 32), (32, 128)])
def test_interleaved_tensors_that_meet_in_one_row_are_refused(strides: tuple[int, int]) -> None:
    """One byte of overlap between alternating rows is found, whatever the axis order."""
    with pytest.raises(PoolError, match="share bytes"):
        validate_pool_layout(two(PoolTensor(0, 0, 0, *strides, 0), PoolTensor(0, 1, 15, *strides, 0), 256))


def test_an_overlap_around_the_page_edge_is_found() -> None:
    """The last row of a page running into the first row of the other tensor's next page counts too."""
    first, second = PoolTensor(0, 0, 0, 64, 20, 0), PoolTensor(0, 1, 40, 64, 20, 0)
    with pytest.raises(PoolError, match="layer 0 tensor 0 and layer 0 tensor 1 share bytes"):
        validate_pool_layout(two(first, second, 512))
