"""Sums of whole numbers do not show their order, so the model may be split in any way."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.model.arithmetic import LIMIT, WEIGHT_ONE, attended, normalised, quantised, rotated, rotation


def draw(seed: int, *shape: int) -> "np.ndarray[tuple[int, ...], np.dtype[np.float64]]":
    """Activations."""
    return np.random.default_rng(seed).integers(-127, 127, shape, endpoint=True).astype(np.float64)


@given(st.integers(0, 2**32), st.integers(1, 12))
def test_a_sum_in_parts_is_the_sum(seed: int, parts: int) -> None:
    """However a product of matrices is cut along what it sums, adding the parts in any order gives the same bits."""
    left, right = draw(seed, 3, 48), draw(seed + 1, 48, 5)
    cuts = sorted(np.random.default_rng(seed).integers(0, 48, parts))
    pieces = [a @ b for a, b in zip(np.split(left, cuts, axis=1), np.split(right, cuts), strict=True)]
    assert np.array_equal(sum(reversed(pieces)), left @ right)


@given(st.integers(0, 2**32), st.integers(1, 40), st.integers(1, 8))
def test_a_query_attends_alike_alone_and_in_a_batch(seed: int, keys: int, queries: int) -> None:
    """A row of a masked batch is what that query gives alone, over the keys that it may see."""
    scores, values = draw(seed, 2, queries, keys) * 50, draw(seed + 1, 2, keys, 4)
    allowed = np.arange(keys) <= np.arange(queries)[:, None]
    together = attended(scores, 0.001, values, allowed)
    for query in range(queries):
        seen = min(query + 1, keys)
        alone = attended(scores[:, query : query + 1, :seen], 0.001, values[:, :seen], None)
        assert np.array_equal(together[:, query : query + 1], alone)


def test_results_are_whole_numbers_within_bounds() -> None:
    """Whatever goes in, activations are whole and at most 127, and attention is a mean of values."""
    values = draw(1, 4, 64) * 1000
    for result in (quantised(values, 0.37), normalised(values), rotated(draw(2, 9, 2, 8), rotation(np.arange(9), 8))):
        assert np.array_equal(result, np.rint(result))
        assert np.abs(result).max() <= LIMIT
    mixed = attended(draw(3, 1, 5, 30) * 100, 0.01, draw(4, 1, 30, 8), None)
    assert np.abs(mixed).max() <= LIMIT


def test_the_largest_sum_is_exact() -> None:
    """A million keys of the largest weight and value stay far below the first whole number that float64 leaves out."""
    assert WEIGHT_ONE * LIMIT * 2**20 < 2**53


def test_position_zero_turns_nothing_and_tables_agree() -> None:
    """The rotation of a position does not depend on how many positions are asked for."""
    assert np.array_equal(rotated(draw(5, 1, 2, 8), rotation(np.arange(1), 8)), draw(5, 1, 2, 8))
    few, many = rotation(np.array([7]), 8), rotation(np.arange(500), 8)
    assert all(np.array_equal(one[0], other[7]) for one, other in zip(few, many, strict=True))
    assert few[0][0, 0, 0] == pytest.approx(round(math.cos(7) * 64))
