"""ZMTP 3 on the wire, as far as a proxy must read it: where a message begins and ends (rfc.zeromq.org, 23/ZMTP and 37/ZMTP).

A connection is a greeting of 64 bytes, then frames::

    flags (1) | length (1, or 8 in network order if flags say so) | body (length)

A frame that is a command (``READY``, ``PING``, ...) stands alone; other frames form messages, each but the last one of a
message marked with *more*. Only the NULL mechanism is understood: an encrypted connection numbers its messages, so that none
can be missing.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

GREETING_BYTES = 64
MAX_FRAME_BYTES = 64 << 20
"""Far above anything that is sent here; a longer frame means that the stream is not what it seems."""

_MORE, _LONG, _COMMAND = 0x01, 0x02, 0x04


class NotZmtpError(ValueError):
    """The bytes are not what this module understands."""


class Kind(Enum):
    """What a piece of the stream is."""

    GREETING = "greeting"
    COMMAND = "command"
    MESSAGE = "message"


@dataclass(frozen=True, slots=True)
class Part:
    """One command or message, or some of a greeting, as it was on the wire."""

    kind: Kind
    data: bytes


class StreamSplitter:
    """Cuts one direction of a connection into whole parts, however the bytes happen to arrive.

    The greeting alone comes in pieces, as it arrives: each side sends the rest of its own only after it has seen the beginning
    of the other's.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._greeting = bytearray()
        self._message_bytes = 0
        """Bytes at the front of the buffer that are complete frames of a message whose end has not come."""

    def feed(self, data: bytes) -> Iterator[Part]:
        """The parts that these bytes complete, in order. Raises ``NotZmtpError``."""
        self._buffer += data
        while (part := self._next()) is not None:
            yield part

    def _next(self) -> Part | None:
        if len(self._greeting) < GREETING_BYTES:
            return self._greet()
        while True:
            start = self._message_bytes
            end = self._frame_end(start)
            if end is None:
                return None
            flags = self._buffer[start]
            if flags & _COMMAND and start:
                raise NotZmtpError("a command in the middle of a message")
            if not flags & _MORE or flags & _COMMAND:
                return self._take(Kind.COMMAND if flags & _COMMAND else Kind.MESSAGE, end)
            self._message_bytes = end

    def _greet(self) -> Part | None:
        if not self._buffer:
            return None
        part = self._take(Kind.GREETING, min(len(self._buffer), GREETING_BYTES - len(self._greeting)))
        self._greeting += part.data
        if len(self._greeting) == GREETING_BYTES:
            signature, version, mechanism = self._greeting[0], self._greeting[10], bytes(self._greeting[12:32])
            if signature != 0xFF or version < 3 or mechanism.rstrip(b"\0") != b"NULL":
                raise NotZmtpError(f"expected a greeting of ZMTP 3 with mechanism NULL, found {self._greeting[:32].hex()}")
        return part

    def _frame_end(self, start: int) -> int | None:
        """Where the frame at ``start`` ends; ``None`` if that much has not arrived."""
        if len(self._buffer) < start + 2:
            return None
        flags = self._buffer[start]
        if flags & ~(_MORE | _LONG | _COMMAND):
            raise NotZmtpError(f"a frame with flags {flags:#04x}")
        header = 9 if flags & _LONG else 2
        if len(self._buffer) < start + header:
            return None
        length = int.from_bytes(self._buffer[start + 1 : start + header], "big")
        if length > MAX_FRAME_BYTES:
            raise NotZmtpError(f"a frame of {length} bytes")
        end = start + header + length
        return end if len(self._buffer) >= end else None

    def _take(self, kind: Kind, end: int) -> Part:
        data = bytes(self._buffer[:end])
        del self._buffer[:end]
        self._message_bytes = 0
        return Part(kind, data)
