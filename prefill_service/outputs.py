"""What the prefill machine wants done. Imperatives, frozen, and the only way it acts on the world.

The shell does one ``match`` over ``Output`` that ends in ``assert_never``; the simulator does the same.
"""

from dataclasses import dataclass
from enum import StrEnum

from protocol.layout import PageRun, RankLayout
from protocol.messages import Descriptor, ToDecode


class Channel(StrEnum):
    """Which of the two sockets to a decode rank a message takes. ``DATA`` keeps its order behind the payload."""

    CONTROL = "control"
    DATA = "data"


@dataclass(frozen=True, slots=True)
class Connect:
    """Open the control socket to this decode endpoint."""

    peer: str


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Close every socket to this decode endpoint."""

    peer: str


@dataclass(frozen=True, slots=True)
class Send:
    """Send without blocking. A send that fails is dropped and counted by the shell: the machine's own timers repeat it."""

    peer: str
    message: ToDecode
    channel: Channel = Channel.CONTROL


@dataclass(frozen=True, slots=True)
class OpenPlane:
    """Open this session's data plane, then ``plane_opened`` or ``plane_failed``."""

    peer: str
    session: str
    plane: str
    region: Descriptor
    ring_size: int
    layout: RankLayout
    """The decode rank's layout: with our own it says what this writer's slice is."""


@dataclass(frozen=True, slots=True)
class ClosePlane:
    """The session is over and none of its writes runs: unmap and close what ``OpenPlane`` opened."""

    peer: str
    session: str


@dataclass(frozen=True, slots=True)
class WriteChunk:
    """Gather ``[token_start, + num_tokens)`` of ``source`` into ring bytes ``[offset, + num_bytes)``, and report its end."""

    write_id: int
    peer: str
    session: str
    room: str
    chunk: int
    alloc_id: int
    attempt: int
    token_start: int
    num_tokens: int
    source: PageRun
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class RoomDone:
    """Every chunk of the room is scattered on every decode rank. The source pages belong to the engine again."""

    room: str


@dataclass(frozen=True, slots=True)
class RoomFailed:
    """The room has failed and none of its writes runs: the source pages belong to the engine again."""

    room: str
    code: str
    message: str


Output = Connect | Disconnect | Send | OpenPlane | ClosePlane | WriteChunk | RoomDone | RoomFailed
