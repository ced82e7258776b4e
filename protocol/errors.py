"""Whose fault it is, in the type.

Two kinds of error cross the protocol and they are handled in opposite ways, so they are two types:

* ``LocalProtocolError`` is a bug on this side of the wire: it is raised and it stops the caller.
* ``RemoteProtocolError`` is the peer's doing: the frame is dropped, counted, logged and answered, and the loop goes on.
"""

from dataclasses import dataclass
from enum import StrEnum


class LocalProtocolError(Exception):
    """This side tried something the protocol forbids. Never caught by a loop: it is our bug."""


class LayoutError(ValueError):
    """A KV layout that cannot exist or cannot be moved. ``problems`` lists every reason found, in plain words."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class Fault(StrEnum):
    """What is wrong with a frame: the ``code`` of a ``RemoteProtocolError`` that the codec raises."""

    FRAME_COUNT = "frame_count"
    TOO_LARGE = "too_large"
    UNKNOWN_TYPE = "unknown_type"
    WRONG_DIRECTION = "wrong_direction"
    UNDECODABLE = "undecodable"
    MISSING_FIELD = "missing_field"
    WRONG_TYPE = "wrong_type"
    OUT_OF_RANGE = "out_of_range"
    BAD_FORMAT = "bad_format"
    INCONSISTENT = "inconsistent"


@dataclass(eq=False)
class RemoteProtocolError(Exception):
    """A peer sent something that is not a message of this protocol.

    ``code`` is a short static word (it becomes a metric label), ``field`` names the offending part, ``expected`` says what
    would have been right. ``session`` is the session the frame claimed, if that much could be read. Not frozen: Python itself
    writes to an exception on its way up (``__traceback__``, notes).
    """

    code: str
    field: str
    expected: str
    session: str | None = None

    def __str__(self) -> str:
        return f"{self.code}: {self.field}: expected {self.expected}"
