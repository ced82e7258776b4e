"""A stream of ZMTP is cut exactly where its messages end, however its bytes arrive."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.zmtp import GREETING_BYTES, MAX_FRAME_BYTES, Kind, NotZmtpError, Part, StreamSplitter

GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)
READY = b"\x04\x05READY"


def frame(body: bytes, *, more: bool = False, long: bool = False) -> bytes:
    """One frame of a message."""
    length = len(body).to_bytes(8, "big") if long or len(body) > 255 else bytes((len(body),))
    return bytes((more | (len(length) == 8) << 1,)) + length + body


def split(data: bytes, step: int) -> list[Part]:
    """Feed a stream in pieces of ``step`` bytes; the parts after the greeting."""
    splitter = StreamSplitter()
    parts = [part for at in range(0, len(data), step) for part in splitter.feed(data[at : at + step])]
    return [part for part in parts if part.kind is not Kind.GREETING]


messages = st.lists(st.lists(st.binary(max_size=300), min_size=1, max_size=4), max_size=5)


@given(messages, st.integers(1, 400), st.booleans())
def test_every_message_comes_out_whole(content: list[list[bytes]], step: int, long: bool) -> None:
    """Whatever the pieces, each message is one part with all its frames, and commands stand alone."""
    wires = [
        b"".join(frame(body, more=number < len(bodies) - 1, long=long) for number, body in enumerate(bodies))
        for bodies in content
    ]
    parts = split(GREETING + READY + b"".join(wires), step)
    assert parts == [Part(Kind.COMMAND, READY), *(Part(Kind.MESSAGE, wire) for wire in wires)]


@pytest.mark.parametrize("step", [1, 10, 11, 64, 100])
def test_a_greeting_passes_at_once(step: int) -> None:
    """Nothing of a greeting is held back, since the other side waits for its beginning; all of it is passed on."""
    splitter, passed = StreamSplitter(), b""
    for at in range(0, GREETING_BYTES, step):
        fed = GREETING[at : at + step]
        assert b"".join(part.data for part in splitter.feed(fed)) == fed
        passed += fed
    assert passed == GREETING


@pytest.mark.parametrize(
    ("data", "why"),
    [
        pytest.param(b"GET / HTTP/1.1".ljust(GREETING_BYTES, b"\r"), "mechanism NULL", id="not ZMTP"),
        pytest.param(GREETING.replace(b"NULL\0", b"CURVE"), "mechanism NULL", id="encrypted"),
        pytest.param(GREETING + b"\x80\x00", "flags 0x80", id="unknown flags"),
        pytest.param(GREETING + b"\x02" + (MAX_FRAME_BYTES + 1).to_bytes(8, "big"), "bytes", id="too long"),
        pytest.param(GREETING + frame(b"a", more=True) + READY, "middle of a message", id="command inside"),
    ],
)
def test_what_cannot_be_understood_is_refused(data: bytes, why: str) -> None:
    """A stream that is not what it seems ends with a reason, not with a wrong cut."""
    with pytest.raises(NotZmtpError, match=why):
        split(data, len(data))
