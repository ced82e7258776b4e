"""The readers: exact types, inclusive bounds, and a complaint that says what was expected."""

from enum import StrEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import Fault
from protocol.wire_fields import (
    Reader,
    Unfit,
    boolean,
    clamp,
    cut_text,
    descriptor,
    flat,
    identifier,
    integer,
    listing,
    name,
    optional,
    pair,
    seconds,
    short_id,
    text,
    word,
)


class Colour(StrEnum):
    """A sample of words."""

    RED = "red"
    BLUE = "blue"


@pytest.mark.parametrize(
    ("reader", "value", "expected"),
    [
        (integer(0, 5), 0, 0),
        (integer(0, 5), 5, 5),
        (seconds(9.5), 0, 0.0),
        (seconds(9.5), 9.5, 9.5),
        (boolean, False, False),
        (identifier, "a b", "a b"),
        (name, "a.b-c_d:1", "a.b-c_d:1"),
        (short_id(3), "abc", "abc"),
        (short_id(3, empty=True), "", ""),
        (text(4), "éé", "éé"),
        (word(Colour), "red", Colour.RED),
        (optional(boolean), None, None),
        (optional(boolean), True, True),
        (listing(boolean, 2), [], ()),
        (listing(boolean, 2), [True, False], (True, False)),
        (pair(complex, integer(0, 9)), [1, 2], 1 + 2j),
        (descriptor, {"path": "/x", "port": 2**64 - 1, "key": b"\0"}, {"path": "/x", "port": 2**64 - 1, "key": b"\0"}),
    ],
)
def test_accepts(reader: Reader, value: object, expected: object) -> None:
    """Each reader takes values up to and including its bounds."""
    assert reader(value) == expected


@pytest.mark.parametrize(
    ("reader", "value", "code"),
    [
        (integer(0, 5), -1, Fault.OUT_OF_RANGE),
        (integer(0, 5), 6, Fault.OUT_OF_RANGE),
        (integer(0, 5), True, Fault.WRONG_TYPE),
        (integer(0, 5), 1.0, Fault.WRONG_TYPE),
        (seconds(9), -0.1, Fault.OUT_OF_RANGE),
        (seconds(9), float("nan"), Fault.OUT_OF_RANGE),
        (seconds(9), float("inf"), Fault.OUT_OF_RANGE),
        (seconds(9), 10**400, Fault.OUT_OF_RANGE),
        (seconds(9), False, Fault.WRONG_TYPE),
        (seconds(9, positive=True), 0.0, Fault.OUT_OF_RANGE),
        (boolean, 1, Fault.WRONG_TYPE),
        (identifier, "", Fault.BAD_FORMAT),
        (identifier, "a\x7f", Fault.BAD_FORMAT),
        (identifier, b"a", Fault.WRONG_TYPE),
        (name, "a b", Fault.BAD_FORMAT),
        (name, ".a", Fault.BAD_FORMAT),
        (name, "a\n", Fault.BAD_FORMAT),
        (name, None, Fault.WRONG_TYPE),
        (short_id(3), "abcd", Fault.BAD_FORMAT),
        (short_id(3), "", Fault.BAD_FORMAT),
        (short_id(3), 3, Fault.WRONG_TYPE),
        (text(4), "ééa", Fault.TOO_LARGE),
        (text(4), "abcde", Fault.TOO_LARGE),
        (text(4), b"abc", Fault.WRONG_TYPE),
        (word(Colour), "green", Fault.BAD_FORMAT),
        (word(Colour), 1, Fault.WRONG_TYPE),
        (listing(boolean, 2), [True] * 3, Fault.OUT_OF_RANGE),
        (listing(boolean, 2), (True,), Fault.WRONG_TYPE),
        (pair(complex, boolean), [True], Fault.OUT_OF_RANGE),
        (descriptor, [], Fault.WRONG_TYPE),
    ],
)
def test_refuses(reader: Reader, value: object, code: Fault) -> None:
    """Each reader refuses the next value beyond its bounds, and the right value in the wrong type."""
    with pytest.raises(Unfit) as caught:
        reader(value)
    assert caught.value.code == code
    assert caught.value.expected


def test_a_path_grows_outwards() -> None:
    """Each level puts its own name in front, with a dot only before a name."""
    assert (
        Unfit(Fault.WRONG_TYPE, "x", "heads").within("[3]").within("layers").within("layout").path == "layout.layers[3].heads"
    )


@given(st.text(st.characters()), st.integers(0, 40))
def test_cut_text_is_what_text_accepts(value: str, max_bytes: int) -> None:
    """Whatever a sender cuts, lone surrogates included, a receiver reads unchanged."""
    cut = cut_text(max_bytes)(value)
    assert text(max_bytes)(cut) == cut


def test_clamp_and_flat() -> None:
    """A long duration is written as the bound, and any mapping as a plain map."""
    assert (clamp(5.0)(7.0), clamp(5.0)(3.0)) == (5.0, 3.0)
    assert flat({"a": 1}) == {"a": 1}
