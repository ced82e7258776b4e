"""Fields of a command: right ones come through, wrong ones are named with what was expected."""

from collections.abc import Callable

import pytest

from protocol.layout import PageRun
from runtime import engine_fields as fields
from runtime.engine_protocol import EngineError


def test_right_fields_come_through() -> None:
    """Each reader gives the value it checked, or what its absence means."""
    assert fields.integer({"n": 3}, "n", 0, 3) == 3
    assert fields.rank({"rank": 7}) == 7
    assert fields.identifier({"room": "room 1"}, "room") == "room 1"
    assert fields.optional_identifier({}, "group") is None
    assert fields.reason({"reason": "x" * 1000}) == "x" * 200
    assert fields.reason({}) == ""
    assert fields.optional_seconds({"t": 2}, "t", 5.0) == 2.0
    assert fields.optional_seconds({"t": None}, "t", 5.0) is None
    assert fields.page_run({"pages": [3, 1], "first_token": 2}) == PageRun((3, 1), 2)
    assert fields.page_run({"pages": []}) == PageRun((), 0)
    assert fields.endpoints({"d": ["tcp://host:1", "tcp://[::1]:65535"]}, "d") == ("tcp://host:1", "tcp://[::1]:65535")
    assert fields.optional_text({"t": "abc"}, "t", 3) == "abc"


WRONG: list[tuple[str, Callable[[], object]]] = [
    ("n", lambda: fields.integer({"n": True}, "n", 0, 3)),
    ("n", lambda: fields.integer({"n": 4}, "n", 0, 3)),
    ("rank", lambda: fields.rank({})),
    ("room", lambda: fields.identifier({"room": b"room"}, "room")),
    ("reason", lambda: fields.reason({"reason": 5})),
    ("t", lambda: fields.optional_seconds({"t": True}, "t", 5.0)),
    ("t", lambda: fields.optional_seconds({"t": 6}, "t", 5.0)),
    ("t", lambda: fields.optional_seconds({"t": float("nan")}, "t", 5.0)),
    ("pages", lambda: fields.page_run({"pages": [True]})),
    ("first_token", lambda: fields.page_run({"pages": [1], "first_token": "0"})),
    ("e", lambda: fields.endpoint("tcp://host:0", "e")),
    ("e", lambda: fields.endpoint("tcp://" + "h" * 1000 + ":1", "e")),
    ("d", lambda: fields.endpoints({"d": "tcp://host:1"}, "d")),
    ("t", lambda: fields.optional_text({"t": "abcd"}, "t", 3)),
]


@pytest.mark.parametrize("case", range(len(WRONG)))
def test_wrong_fields_are_named(case: int) -> None:
    """The refusal carries the field, what was expected and what came."""
    field, read = WRONG[case]
    with pytest.raises(EngineError, match=rf"^invalid: {field}: expected .*, got ") as caught:
        read()
    assert caught.value.field == field
