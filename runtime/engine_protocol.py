"""What an engine and its daemon say to each other on the unix socket: one msgpack map each way.

    request   {"id": n, "op": "register_room", ...}
    answer    {"id": n, "ok": true, ...}  or  {"id": n, "ok": false, "code": ..., "message": ..., "field": ..., "limit": ...}

Answers may come in any order and much later; ``id`` is the engine's own number and is only echoed.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgpack

MAX_ENGINE_MESSAGE_BYTES: Final = 64 << 20
"""Bound of one request: a pool of many layers and a room of a million pages both stay far below it."""

Body = Mapping[str, Any]


class EngineError(Exception):
    """A command was refused or failed. ``code`` is static.

    ``field`` is what was wrong in the request; ``limit`` is the bound that was met.
    """

    def __init__(self, code: str, message: str, field: str | None = None, limit: int | None = None) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.field = field
        self.limit = limit

    def to_body(self) -> dict[str, Any]:
        """The answer that says so."""
        body: dict[str, Any] = {"ok": False, "code": self.code, "message": self.message}
        if self.field is not None:
            body["field"] = self.field
        if self.limit is not None:
            body["limit"] = self.limit
        return body

    @classmethod
    def from_body(cls, body: Body) -> "EngineError":
        """The error that an answer carries."""
        return cls(str(body.get("code", "unknown")), str(body.get("message", "")), body.get("field"), body.get("limit"))


def pack(body: Body) -> bytes:
    """One map as bytes."""
    packed: bytes = msgpack.packb(body, use_bin_type=True)
    return packed


def unpack(frame: bytes) -> dict[str, Any]:
    """One map from bytes. Raises ``EngineError`` (``malformed``) for anything else."""
    try:
        body = msgpack.unpackb(frame, raw=False, strict_map_key=False)
    except (ValueError, msgpack.UnpackException) as error:
        raise EngineError("malformed", f"expected one msgpack map: {error}") from error
    if not isinstance(body, dict) or not all(isinstance(key, str) for key in body):
        raise EngineError("malformed", "expected one msgpack map with string keys")
    return body
