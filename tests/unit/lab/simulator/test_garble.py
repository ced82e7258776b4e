"""Garbled frames are never what was sent, and some of them decode."""

from random import Random

from lab.simulator.garble import BEYOND_ANY_ROOM, garble
from protocol import codec
from protocol.errors import RemoteProtocolError
from protocol.messages import StagingReq


def test_nonsense_is_refused_or_out_of_range() -> None:
    """Either the codec refuses it, or its index belongs to no room."""
    frames, random, decoded = codec.encode(StagingReq("s", "r", 0, 0, 4)), Random("nonsense"), 0
    for _ in range(200):
        nonsense = garble(frames, random)
        assert nonsense != frames
        try:
            message = codec.decode_to_decode(nonsense)
        except RemoteProtocolError:
            continue
        assert isinstance(message, StagingReq)
        assert message.chunk == BEYOND_ANY_ROOM
        decoded += 1
    assert decoded
