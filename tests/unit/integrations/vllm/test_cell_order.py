"""Orders of cells: known ones are recognised as strides, and none is taken that loses an element."""

import numpy as np
import pytest

from integrations.vllm.cell_order import KEYS, VALUES, Axis, CellOrder, HalfOrder
from tests.unit.integrations.vllm.cell_orders import ORDERS, plain, scrambled, tiled


@pytest.mark.parametrize("name", ["plain", "tiled"])
def test_known_orders_are_strides(name: str) -> None:
    """A view by strides shows the elements where the map says that they are."""
    order = ORDERS[name](32, 48)
    for tensor in (KEYS, VALUES):
        half = order.half(tensor)
        elements = np.arange(3 * 2 * 32 * 48).reshape(3, 2, -1)
        view = half.view(elements)
        assert view is not None
        shown = view.reshape(3, 32, 2, 48).transpose(0, 2, 1, 3)
        assert np.array_equal(shown, elements[:, :, half.index])
    assert (order.block_size, order.head_size) == (32, 48)


@pytest.mark.parametrize(("tensor", "lanes", "itemsize"), [(KEYS, 1, 4), (VALUES, 2, 2)])
def test_short_inner_axes_are_no_loops(tensor: int, lanes: int, itemsize: int) -> None:
    """Pairs of neighbours move as one wider element, pairs of tokens in two lanes; together they are everything."""
    half = tiled(32, 48).half(tensor)
    elements = np.arange(3 * 2 * 32 * 48).astype(np.uint16).reshape(3, 2, -1)
    rows = np.zeros((3, 32, 2, 48), np.uint16)
    view = half.view(elements)
    assert view is not None
    pairs = list(half.lanes(view, rows))
    assert [(lane.itemsize, row.itemsize) for lane, row in pairs] == [(itemsize, itemsize)] * lanes
    for lane, row in pairs:
        np.copyto(row, lane)
    assert np.array_equal(rows.transpose(0, 2, 1, 3), elements[:, :, half.index])
    assert not half.is_transposed
    assert plain(32, 48).keys.is_transposed


def test_tiles_are_found() -> None:
    """The two axes are taken from the map alone."""
    half = tiled(32, 48).keys
    assert half.tokens == Axis(outer=2, inner=16, outer_stride=48 * 16, inner_stride=2)
    assert half.dims == Axis(outer=24, inner=2, outer_stride=32, inner_stride=1)
    assert plain(32, 48).values.tokens == Axis(outer=1, inner=32, outer_stride=0, inner_stride=48)


def test_order_without_rule_has_no_view() -> None:
    """It is copied element by element instead."""
    half = scrambled(8, 4).keys
    assert half.view(np.zeros((1, 1, 32))) is None


def test_one_token_or_one_dim() -> None:
    """The smallest sizes are orders, too."""
    assert plain(1, 1).keys.view(np.zeros((1, 1, 1))) is not None
    assert plain(1, 4).block_size == 1


def test_irregular_axes_are_not_taken_for_regular() -> None:
    """Places that only begin regularly follow no rule of two strides."""
    assert Axis.of(np.array([0, 1, 2, 5])) is None
    assert Axis.of(np.array([0, 1, 5, 6, 9, 10])) is None


@pytest.mark.parametrize("index", [[[0, 0]], [[0, 2]], [[-1, 0]]])
def test_maps_that_lose_elements_are_refused(index: list[list[int]]) -> None:
    """Every element has its own place within the half, or there is no order."""
    with pytest.raises(ValueError, match="one place for each"):
        HalfOrder.of(np.array(index))


def test_halves_are_of_one_shape() -> None:
    """Size and head come from the keys."""
    assert CellOrder.of(np.arange(6).reshape(3, 2), np.arange(6).reshape(3, 2)).head_size == 2
