"""Rows judge themselves by their own arithmetic; no test here judges how fast anything is."""

import pytest

from lab.benches.rows import (
    Row,
    jain,
    percentile,
    ratio_at_least,
    ratio_at_most,
    rounded,
    value_at_least,
    value_at_most,
)


def test_a_row_shows_its_ratio_and_keeps_its_target() -> None:
    """The JSON object has name, value, unit, limit, ratio, target and met."""
    row = Row("staged/shm", 4.0, "GB/s", 5.0, (ratio_at_least(0.8),))
    assert row.to_json() == {
        "name": "staged/shm",
        "value": 4.0,
        "unit": "GB/s",
        "limit": 5.0,
        "ratio": 0.8,
        "target": "ratio >= 0.8",
        "met": True,
    }


@pytest.mark.parametrize(
    ("target", "met"),
    [(ratio_at_most(1.9), False), (ratio_at_most(2.0), True), (ratio_at_least(2.1), False), (value_at_most(6), True)],
)
def test_targets_bound_ratios_and_values(target: object, met: object) -> None:
    """Each relation holds on its bound and on one side of it."""
    row = Row("a", 6.0, "us", 3.0, (target,))  # type: ignore[arg-type]
    assert row.met is met


def test_every_target_of_a_row_counts() -> None:
    """A row is met only if all its targets are, and says all of them."""
    row = Row("a", 6.0, "us", 3.0, (value_at_most(10), ratio_at_most(1.5)))
    assert row.met is False
    assert row.target == "value <= 10, ratio <= 1.5"


def test_a_row_without_a_target_is_only_published() -> None:
    """It is neither met nor missed, and a note of its own is passed on."""
    row = Row("a", 6.0, "us", note="why")
    assert row.met is None
    assert row.to_json() | {"ratio": None, "target": None, "note": "why"} == row.to_json()


def test_a_ratio_that_cannot_be_made_keeps_no_bound() -> None:
    """Neither a missing limit nor one of nothing passes for a kept promise."""
    assert Row("a", 1.0, "us", None, (ratio_at_most(2.0),)).met is False
    assert Row("a", 1.0, "us", 0.0, (ratio_at_least(2.0),)).met is False
    assert Row("a", float("nan"), "us", None, (value_at_least(0.0),)).met is False


def test_percentiles_are_measured_numbers() -> None:
    """The nearest rank: the largest number is the 100th percentile, and of few numbers already the 99th."""
    assert percentile([3.0, 1.0, 2.0], 99) == 3.0
    assert percentile(list(map(float, range(1, 101))), 99) == 99.0
    assert percentile([5.0], 0) == 5.0
    with pytest.raises(ValueError, match="no numbers"):
        percentile([], 50)


def test_fairness_is_one_for_equals_and_a_share_for_a_monopoly() -> None:
    """Jain's index over n shares lies between 1/n and 1."""
    assert jain([7, 7, 7]) == pytest.approx(1.0)
    assert jain([9, 0, 0]) == pytest.approx(1 / 3)
    assert jain([0, 0]) == 0.0


def test_numbers_are_shown_with_few_digits() -> None:
    """Four significant digits, whatever the size; nothing that JSON cannot hold."""
    assert [rounded(number) for number in (0.0123456, 123456.7, 0.0, None)] == [0.01235, 123457.0, 0.0, None]
    assert rounded(float("inf")) is None
