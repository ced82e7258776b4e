"""The field table of one dataclass: it matches the dataclass, reads what it writes, and names what does not fit."""

from dataclasses import dataclass

import pytest

from protocol.errors import Fault
from protocol.wire_fields import Unfit, integer, listing, optional
from protocol.wire_record import Field, Record


@dataclass(frozen=True, slots=True)
class Point:
    """A sample with one required and two optional fields."""

    x: int
    y: int = 7
    more: tuple[int, ...] | None = None


def _positive(point: Point) -> None:
    if point.x + point.y < 0:
        raise Unfit(Fault.INCONSISTENT, "a sum above zero", "y")


_small = integer(-9, 9)
POINT = Record(
    Point,
    Field("x", _small),
    Field("y", _small, default=7),
    Field("more", optional(listing(_small, 3)), default=None, write=list),
    check=_positive,
)


def _complaint(body: object) -> tuple[str, str]:
    with pytest.raises(Unfit) as caught:
        POINT.read(body)
    return caught.value.code, caught.value.path


def test_a_table_must_match_its_dataclass() -> None:
    """A field that is missing, added or out of order in the table stops the program at import."""
    with pytest.raises(TypeError, match="Point has the fields"):
        Record(Point, Field("x", _small), Field("y", _small))
    with pytest.raises(TypeError, match="Point has the fields"):
        Record(Point, Field("y", _small), Field("x", _small), Field("more", _small))


@pytest.mark.parametrize("point", [Point(1), Point(1, 2), Point(1, 7, (1, 2)), Point(-2, 3, ())])
def test_what_is_written_reads_back_equal(point: Point) -> None:
    """Writing and reading are each other's inverse."""
    assert POINT.read(POINT.write(point)) == point


def test_defaults_stay_off_the_wire() -> None:
    """A field that has its default value is left out."""
    assert POINT.write(Point(1)) == {"x": 1}
    assert POINT.write(Point(1, 8, (2,))) == {"x": 1, "y": 8, "more": [2]}


@pytest.mark.parametrize(
    ("body", "code", "path"),
    [
        (None, Fault.WRONG_TYPE, ""),
        ([], Fault.WRONG_TYPE, ""),
        ({}, Fault.MISSING_FIELD, "x"),
        ({"x": None}, Fault.WRONG_TYPE, "x"),
        ({"x": 1, "y": None}, Fault.WRONG_TYPE, "y"),
        ({"x": 1, "more": [1, 2, "3"]}, Fault.WRONG_TYPE, "more[2]"),
        ({"x": 1, "more": [1] * 4}, Fault.OUT_OF_RANGE, "more"),
        ({"x": 1, "y": -2}, Fault.INCONSISTENT, "y"),
    ],
)
def test_what_does_not_fit_is_named(body: object, code: Fault, path: str) -> None:
    """The complaint carries the path of the first field that does not fit."""
    assert _complaint(body) == (code, path)


def test_unknown_keys_are_ignored() -> None:
    """Keys outside the table change nothing."""
    assert POINT.read({"x": 1, "z": object()}) == Point(1)
