"""Smallest legal bodies as they travel, to be bent by tests, and what a decoder says about the bent ones."""

from collections.abc import Callable, Sequence
from typing import Final

import msgpack
import pytest

from protocol.codec import decode_to_decode
from protocol.errors import RemoteProtocolError
from protocol.messages import Message

Body = dict[str, object]
Decode = Callable[[Sequence[bytes]], Message]

REQUEST: Final[Body] = {"session": "s-1", "room": "r-1", "chunk": 0, "token_start": 0, "num_tokens": 16}
RESPONSE: Final[Body] = {"session": "s-1", "room": "r-1", "chunk": 0, "status": "pending", "watermark": [3, 0]}
GRANT: Final[Body] = {"alloc_id": 1, "offset": 0, "round": 3, "end": 100, "writer_offset": 50, "writer_bytes": 50}
LAYOUT: Final[Body] = {
    "model": {"layers": [[2, [{"name": "k", "heads": 8, "width": 256, "dtype": "bf16"}]]]},
    "tp_rank": 0,
    "tp_size": 4,
    "pp_rank": 0,
    "pp_size": 1,
    "stage_bounds": [0, 2],
}
SUBSCRIBE: Final[Body] = {
    "attempt": 1,
    "versions": [1, 1],
    "features": [],
    "prefill_id": "p",
    "group": "g",
    "incarnation": 5,
    "decode_rank": None,
    "chunk_tokens": 1024,
    "layout": LAYOUT,
    "planes": ["shm"],
    "host_id": "h",
}
SUBSCRIBED: Final[Body] = {
    "attempt": 1,
    "incarnation": 5,
    "version": 1,
    "features": [],
    "session": "s",
    "decode_id": "d",
    "decode_incarnation": 9,
    "decode_rank": 0,
    "epoch": 77,
    "ring_size": 100,
    "plane": "shm",
    "region": {},
    "heartbeat_s": 1,
    "lease_s": 10,
    "layout": LAYOUT,
}


def frames(kind: str, body: object) -> list[bytes]:
    """Two frames with any body at all."""
    return [kind.encode(), msgpack.packb(body)]


def refusal(decode: Decode, message: Sequence[bytes]) -> RemoteProtocolError:
    """The error that ``decode`` raises for ``message``."""
    with pytest.raises(RemoteProtocolError) as caught:
        decode(message)
    return caught.value


def refused_body(kind: str, body: object) -> tuple[str, str]:
    """Code and field of the complaint about this body, sent to the decode side."""
    error = refusal(decode_to_decode, frames(kind, body))
    return error.code, error.field
