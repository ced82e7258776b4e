"""One frozen dataclass per message, and the unions that say which way each may travel.

Field names are the wire's keys (``protocol/codec.py``). Durations are seconds; offsets and sizes are bytes; ``session`` is an
ASCII id minted by the decode rank. The meaning of every message is in ``docs/protocol.md``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from protocol.layout import LayoutDifference, RankLayout
from protocol.watermark import Watermark

Descriptor = Mapping[str, int | str | bytes]
"""What a plane needs to reach a region: opaque to the protocol, read by the plane of the same name."""


class GrantStatus(StrEnum):
    """Answer to a ``STAGING_REQ``."""

    GRANTED = "granted"
    PENDING = "pending"
    BUSY = "busy"
    DONE = "done"
    OVERSIZED = "oversized"
    ABORTED = "aborted"
    INVALID = "invalid"
    UNKNOWN_ROOM = "unknown_room"


class DoneStatus(StrEnum):
    """Verdict on a ``CHUNK_READY``."""

    SCATTERED = "scattered"
    REJECTED = "rejected"
    STALE = "stale"


class RefusedCode(StrEnum):
    """Why a ``SUBSCRIBE`` was refused. Only ``SUPERSEDED`` ends that life of the prefill; the rest may be tried again later."""

    LAYOUT = "layout"
    VERSION = "version"
    SUPERSEDED = "superseded"
    TOO_MANY_SESSIONS = "too_many_sessions"
    WRITER_TAKEN = "writer_taken"
    WRONG_RANK = "wrong_rank"
    NO_PLANE = "no_plane"
    DRAINING = "draining"
    NOT_ALLOWED = "not_allowed"


class ErrorCode(StrEnum):
    """What an ``ERROR`` complains about."""

    UNKNOWN_SESSION = "unknown_session"
    MALFORMED = "malformed"


@dataclass(frozen=True, slots=True)
class Subscribe:
    """P asks for a session. Repeated with back-off until the answer to its latest ``attempt`` arrives."""

    attempt: int
    versions: tuple[int, int]
    features: tuple[str, ...]
    prefill_id: str
    group: str
    incarnation: int
    decode_rank: int | None
    """The rank P expects at this endpoint; ``None`` if it does not care (the answer says which one it is)."""
    chunk_tokens: int
    layout: RankLayout
    """Carries ``tp_rank``, ``tp_size``, ``pp_rank`` and ``pp_size`` of the prefill."""
    planes: tuple[str, ...]
    host_id: str
    stopped: str | None = None
    """An old session of this P all of whose writes have ended: proof for every grant it was given."""
    lost: str | None = None
    """An old session that this P has given up and in which writes may still land: D must end it, and has no proof."""


@dataclass(frozen=True, slots=True)
class Subscribed:
    """D accepts; the current ``WATERMARK`` follows at once."""

    attempt: int
    incarnation: int
    version: int
    features: tuple[str, ...]
    session: str
    decode_id: str
    decode_incarnation: int
    """One life of the decode process: a new value means that the rooms of the former life are gone."""
    decode_rank: int
    epoch: int
    ring_size: int
    plane: str
    region: Descriptor
    heartbeat_s: float
    lease_s: float
    layout: RankLayout
    """The decode rank's own layout, from which P computes its slice."""


@dataclass(frozen=True, slots=True)
class Refused:
    """D declines a ``SUBSCRIBE``, with every difference that matters."""

    attempt: int
    code: RefusedCode
    message: str
    diff: tuple[LayoutDifference, ...] = ()


@dataclass(frozen=True, slots=True)
class WatermarkUpdate:
    """The current watermark of the session's epoch. Four ASCII frames on the wire."""

    round: int
    tail: int
    session: str

    @property
    def watermark(self) -> Watermark:
        """The pair as the gate compares it."""
        return Watermark(self.round, self.tail)


@dataclass(frozen=True, slots=True)
class StagingReq:
    """P has the bytes of this chunk and asks for a place. Idempotent by (room, chunk, writer)."""

    session: str
    room: str
    chunk: int
    token_start: int
    num_tokens: int
    traceparent: str | None = None


@dataclass(frozen=True, slots=True)
class GrantSlice:
    """A grant and this writer's part of it: bytes ``[offset + writer_offset, + writer_bytes)`` of the ring."""

    alloc_id: int
    offset: int
    round: int
    end: int
    writer_offset: int
    writer_bytes: int


@dataclass(frozen=True, slots=True)
class StagingRsp:
    """Answer to ``STAGING_REQ``; ``grant`` is set exactly if ``status`` is ``granted``. Always carries the watermark."""

    session: str
    room: str
    chunk: int
    status: GrantStatus
    watermark: Watermark
    grant: GrantSlice | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class ChunkReady:
    """This writer's bytes are visible to D and it will not write this grant again, unless this attempt is rejected."""

    session: str
    room: str
    chunk: int
    alloc_id: int
    attempt: int
    num_bytes: int
    checksum: int | None
    """xxh3-64 of the slice, or ``None`` where checksums are off."""
    traceparent: str | None = None


@dataclass(frozen=True, slots=True)
class WriteFailed:
    """A one-sided write ended without completion: its bytes may still land, so the grant is tainted."""

    session: str
    room: str
    chunk: int
    alloc_id: int
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class ChunkDone:
    """D's verdict on a ``CHUNK_READY``, echoing the grant and the attempt it judges."""

    session: str
    room: str
    chunk: int
    alloc_id: int
    attempt: int
    status: DoneStatus
    code: str = ""


@dataclass(frozen=True, slots=True)
class Abort:
    """The room has failed on the sender's side. From P it also says: my writes into this room have ended."""

    session: str
    room: str
    abort_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class AbortAck:
    """None of the sender's writes into this room runs or will run."""

    session: str
    room: str
    abort_id: int


@dataclass(frozen=True, slots=True)
class Blocked:
    """What a probing P waits for: the grant that its gate refuses, and for how long."""

    room: str
    chunk: int
    round: int
    end: int
    waited_s: float


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """P lives. ``seen`` is the watermark it believes."""

    session: str
    seq: int
    seen: Watermark
    blocked: Blocked | None = None


@dataclass(frozen=True, slots=True)
class HeartbeatAck:
    """Answer to one ``HEARTBEAT``; the current ``WATERMARK`` follows."""

    session: str
    seq: int


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """P leaves in order: none of its writes runs or will run."""

    session: str
    reason: str


@dataclass(frozen=True, slots=True)
class Goodbye:
    """D drains: it grants nothing new."""

    session: str
    reason: str


@dataclass(frozen=True, slots=True)
class Error:
    """Something about a frame of ``session`` was wrong. P acts on it only if that is its current session."""

    session: str
    code: ErrorCode
    message: str
    in_reply_to: str


@dataclass(frozen=True, slots=True)
class DataPiece:
    """Header of one piece of payload on the ``zmq`` plane: bytes ``[offset, offset + num_bytes)`` of the writer's slice."""

    session: str
    room: str
    chunk: int
    alloc_id: int
    attempt: int
    offset: int
    num_bytes: int


ToDecode = Subscribe | StagingReq | ChunkReady | WriteFailed | Abort | AbortAck | Heartbeat | Unsubscribe
ToPrefill = Subscribed | Refused | WatermarkUpdate | StagingRsp | ChunkDone | Abort | AbortAck | HeartbeatAck | Goodbye | Error
Message = ToDecode | ToPrefill
