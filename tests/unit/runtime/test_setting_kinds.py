"""Kinds of setting read what a person writes and refuse the rest."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.setting_kinds import (
    ENDPOINTS,
    INTEGER,
    NAME,
    NAMES,
    NUMBER,
    OPTIONAL_NAME,
    PATH,
    RANKS,
    SIZE,
    SWITCH,
    TEXT,
    Kind,
    render_size,
)


@pytest.mark.parametrize(
    ("kind", "written", "value"),
    [
        (TEXT, " 127.0.0.1 ", "127.0.0.1"),
        (NAME, "decode-0.a_b", "decode-0.a_b"),
        (OPTIONAL_NAME, "", ""),
        (INTEGER, "7600", 7600),
        (INTEGER, 7600, 7600),
        (NUMBER, "0.05", 0.05),
        (NUMBER, 2, 2.0),
        (SWITCH, "On", True),
        (SWITCH, "0", False),
        (SWITCH, True, True),
        (SIZE, "256MiB", 268_435_456),
        (SIZE, "256 MiB", 268_435_456),
        (SIZE, "1000", 1000),
        (SIZE, 1000, 1000),
        (RANKS, "0", (0,)),
        (RANKS, "0-7", (0, 1, 2, 3, 4, 5, 6, 7)),
        (RANKS, "4-5, 0,2", (0, 2, 4, 5)),
        (RANKS, 3, (3,)),
        (RANKS, [0, "2-3"], (0, 2, 3)),
        (NAMES, "shm, zmq", ("shm", "zmq")),
        (NAMES, ["zmq"], ("zmq",)),
        (ENDPOINTS, "", ()),
        (ENDPOINTS, "tcp://127.0.0.1:7600-7602", tuple(f"tcp://127.0.0.1:{port}" for port in (7600, 7601, 7602))),
        (ENDPOINTS, "tcp://[::1]:1,tcp://decode-0.pd:2", ("tcp://[::1]:1", "tcp://decode-0.pd:2")),
        (PATH, "/dev/shm", Path("/dev/shm")),
        (PATH, "~/run", Path.home() / "run"),
    ],
)
def test_reads_what_a_person_writes(kind: Kind[object], written: object, value: object) -> None:
    """Text from a flag and typed values from a file give the same value."""
    assert kind.parse(written) == value


@pytest.mark.parametrize(
    ("kind", "written"),
    [
        (TEXT, 3),
        (NAME, ""),
        (NAME, "a/b"),
        (NAME, "../escape"),
        (NAME, "x" * 65),
        (INTEGER, "7600x"),
        (INTEGER, True),
        (INTEGER, 1.5),
        (INTEGER, "9" * 19),
        (NUMBER, "nan"),
        (NUMBER, "inf"),
        (NUMBER, "soon"),
        (SWITCH, "maybe"),
        (SWITCH, 1),
        (SIZE, "12X"),
        (SIZE, "1.5GiB"),
        (SIZE, "64MB"),
        (SIZE, True),
        (RANKS, ""),
        (RANKS, "7-0"),
        (RANKS, "0,0"),
        (RANKS, "0-4,3"),
        (RANKS, "0-99999"),
        (RANKS, "-1"),
        (RANKS, {"0": 1}),
        (NAMES, "shm,shm"),
        (ENDPOINTS, "127.0.0.1:7600"),
        (ENDPOINTS, "tcp://127.0.0.1"),
        (ENDPOINTS, "tcp://127.0.0.1:0"),
        (ENDPOINTS, "tcp://127.0.0.1:65536"),
        (ENDPOINTS, "tcp://127.0.0.1:1-65535"),
        (ENDPOINTS, "tcp://a:1,tcp://a:1"),
        (PATH, "relative"),
        (PATH, "/nul\0byte"),
    ],
)
def test_refuses_the_rest(kind: Kind[object], written: object) -> None:
    """Whatever cannot be read is a ``ValueError``, and no number in it sizes anything."""
    with pytest.raises(ValueError):  # noqa: PT011 - the text is the caller's
        kind.parse(written)


@given(st.integers(min_value=0, max_value=1 << 50))
def test_size_survives_writing(size: int) -> None:
    """A size written in its largest unit reads back as the same number of bytes."""
    assert SIZE.parse(render_size(size)) == size


@given(st.sets(st.integers(min_value=0, max_value=4095), min_size=1))
def test_ranks_survive_writing(ranks: set[int]) -> None:
    """Any set of ranks written as spans reads back in order."""
    expected = tuple(sorted(ranks))
    assert RANKS.parse(RANKS.render(expected)) == expected
