"""Ids are bounded printable ASCII; names are what may become part of a file name; incarnations are ordered by start time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.identifiers import IdentifierError, check_id, check_name, is_id, is_name, make_incarnation
from protocol.limits import MAX_UINT63


@pytest.mark.parametrize("text", ["a", "room 7", "~!@#/\\", "x" * 128, " "])
def test_ids(text: str) -> None:
    """Any printable ASCII of 1 to 128 characters is an id."""
    assert check_id(text, "room") == text


@pytest.mark.parametrize("text", ["", "x" * 129, "a\n", "\t", "\x00", "\x7f", "é", "\u2028", "a\u0301"])
def test_not_ids(text: str) -> None:
    """Anything else is refused with the field and what was expected."""
    assert not is_id(text)
    with pytest.raises(IdentifierError, match="room: expected 1 to 128 printable ASCII characters") as caught:
        check_id(text, "room")
    assert caught.value.field == "room"


@pytest.mark.parametrize("text", ["session-new", "d0", "a.b", "A_1:2", "-", "x" * 128])
def test_names(text: str) -> None:
    """Letters, digits, dot, underscore, hyphen and colon make a name."""
    assert check_name(text, "session") == text


@pytest.mark.parametrize("text", ["", ".", "..", ".hidden", "a/b", "a b", "a\\b", "a\n", "é", "x" * 129, "a\x00"])
def test_not_names(text: str) -> None:
    """Nothing that could leave or hide in a directory is a name."""
    assert not is_name(text)
    with pytest.raises(IdentifierError, match="session: expected") as caught:
        check_name(text, "session")
    assert "no dot in front" in caught.value.expected


@given(st.text(max_size=140))
def test_every_name_is_an_id(text: str) -> None:
    """Names are a subset of ids, and ids are exactly bounded printable ASCII."""
    assert is_id(text) or not is_name(text)
    assert is_id(text) == (0 < len(text) <= 128 and all(" " <= character <= "~" for character in text))


@given(st.integers(0, MAX_UINT63), st.integers(0, MAX_UINT63), st.integers(0, 2**70), st.integers(0, 2**70))
def test_incarnations_follow_their_start_times(earlier: int, gap: int, bits: int, other_bits: int) -> None:
    """Two lives that start at least 65.536 microseconds apart compare as their start times, whatever was drawn for them."""
    first = make_incarnation(earlier, bits)
    assert 0 <= first <= MAX_UINT63
    later = earlier + gap + (1 << 16)
    if later <= MAX_UINT63:
        assert first < make_incarnation(later, other_bits)


def test_incarnations_of_one_instant_differ_by_their_bits() -> None:
    """The low 16 bits are the random ones, nothing else."""
    assert make_incarnation(0x1234_5678_9ABC, 0xF_0001) == 0x1234_5678_0001
