"""Senseless frames beside true ones: cut short, unknown, random, or well formed and out of range."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from protocol import codec
from protocol.errors import RemoteProtocolError
from protocol.messages import StagingReq

BEYOND_ANY_ROOM = 1_000_000_000
"""An index that must never size anything."""


def garble(frames: Sequence[bytes], random: Random) -> list[bytes]:
    """Something that a sender of ``frames`` would never send; it may even decode."""
    kind, *rest = frames
    body = rest[0] if rest else b""
    return random.choice(
        (
            [],
            [b"x"],
            [kind],
            [kind, body[:-1], *rest[1:]],
            [kind, random.randbytes(random.randint(0, 40))],
            [b"NOTHING", *rest],
            [kind, *rest, b"more"],
            _out_of_range(frames),
        )
    )


def _out_of_range(frames: Sequence[bytes]) -> list[bytes]:
    try:
        message = codec.decode_to_decode(frames)
    except RemoteProtocolError:
        return list(frames[::-1])
    if isinstance(message, StagingReq):
        return codec.encode(replace(message, chunk=BEYOND_ANY_ROOM, token_start=0))
    return list(frames[::-1])
