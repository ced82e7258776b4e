"""Entries read like sentences, not like memory."""

import pytest

from decode_service.outputs import Send
from lab.flight_words import call_text, outcome_text, text
from protocol.errors import RemoteProtocolError
from protocol.layout import PageRun
from protocol.messages import GrantStatus, StagingReq, StagingRsp
from protocol.watermark import Watermark
from runtime.recorder import Entry, Raised
from tests.unit.lab.machines import LAYOUT


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (PageRun((1, 2, 3), 5), "3 pages from token 5"),
        (LAYOUT, "layout(tp 0/1, pp 0/1)"),
        (GrantStatus.BUSY, "BUSY"),
        (b"\x00\xff", "00ff"),
        (b"", "data socket"),
        (RemoteProtocolError("too_large", "frames", "less"), "too_large: frames: expected less"),
        (("a", 1), "['a', 1]"),
        ("x" * 100, "'" + "x" * 68 + "..."),
        (StagingReq("s", "r", 0, 0, 8), "StagingReq(session 's', room 'r', chunk 0, token_start 0, num_tokens 8)"),
    ],
    ids=["pages", "layout", "enum", "route", "no route", "error", "tuple", "long", "message"],
)
def test_values(value: object, words: str) -> None:
    """Each kind of value in the words of the field, without what says nothing."""
    assert text(value) == words


def test_calls() -> None:
    """A call shows its arguments and leaves the time to the column of times."""
    entry = Entry(1, "receive", (b"\x01", StagingReq("s", "r", 0, 0, 8), 1.5), {"died": True}, ())
    assert call_text(entry).startswith("receive(01, StagingReq(")
    assert call_text(entry).endswith(", died=True)")


def test_outcomes() -> None:
    """Outputs one after the other, an exception, or nothing."""
    answer = Send(b"\x01", StagingRsp("s", "r", 0, GrantStatus.PENDING, Watermark(0, 0)))
    assert outcome_text((answer, answer)).count("Send(route 01, ") == 2
    assert outcome_text(Raised("ValueError", "no")) == "ValueError: no"
    assert outcome_text(()) == "nothing"
