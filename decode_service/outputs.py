"""What the decode machine wants done. Imperatives, frozen, and the only way it acts on the world.

The shell does one ``match`` over ``Output`` that ends in ``assert_never``; the simulator does the same.
"""

from dataclasses import dataclass

from protocol.layout import PageRun, WriterSlice
from protocol.messages import ToPrefill


@dataclass(frozen=True, slots=True)
class Send:
    """Send on the control socket without blocking. A failure is told to ``DecodeStagingHandler.send_failed``."""

    route: bytes
    message: ToPrefill


@dataclass(frozen=True, slots=True)
class CopyPiece:
    """Copy the payload that was just received to bytes ``[offset, offset + num_bytes)`` of the ring, then ``piece_copied``."""

    copy_id: int
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class ReadySlice:
    """One writer's bytes in the ring, ``[offset, offset + num_bytes)``, with the checksum it promised (``None``: unchecked)."""

    layout: WriterSlice
    """Which heads of which layers the bytes are; ``layout.writer`` names the writer."""
    offset: int
    num_bytes: int
    checksum: int | None


@dataclass(frozen=True, slots=True)
class ScatterChunk:
    """Verify every slice, and if all are right copy them into the pages; then ``scatter_finished`` with the bad writers."""

    alloc_id: int
    room: str
    chunk: int
    token_start: int
    num_tokens: int
    destination: PageRun
    slices: tuple[ReadySlice, ...]


@dataclass(frozen=True, slots=True)
class RoomDone:
    """Every token the room was registered with is in its pages. The pages belong to the engine again."""

    room: str


@dataclass(frozen=True, slots=True)
class RoomFailed:
    """The room will not complete, and no copy of ours runs into its pages. ``code`` is static, ``message`` is for people."""

    room: str
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class ProbeQuiet:
    """Ask the plane for proof that no process of this session can still write; if it has it, ``session_quiet``."""

    session: str


@dataclass(frozen=True, slots=True)
class SessionClosed:
    """The session is over and quiet: what the shell keeps for it may go."""

    session: str


@dataclass(frozen=True, slots=True)
class SessionFenced:
    """Told, not asked: this session may do nothing any more, and why."""

    session: str
    prefill_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class GrantQuarantined:
    """Told, not asked: this grant pins the ring until these prefills prove that they write no more, or the ring is replaced."""

    alloc_id: int
    room: str
    chunk: int
    waits_for: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class ReplaceRegion:
    """Get new memory of the same size, then ``region_replaced``; or say ``region_unavailable``."""

    reason: str


@dataclass(frozen=True, slots=True)
class ReleaseRegion:
    """Nothing of ours touches the memory of that former epoch and nobody else can: give it back."""

    epoch: int


Output = (
    Send
    | CopyPiece
    | ScatterChunk
    | RoomDone
    | RoomFailed
    | ProbeQuiet
    | SessionFenced
    | SessionClosed
    | GrantQuarantined
    | ReplaceRegion
    | ReleaseRegion
)
