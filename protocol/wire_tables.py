"""The wire form of every message: one table per type, each row a key with its type and bounds.

These tables are the code's half of ``docs/protocol.md``; everything that turns bytes into them is in ``protocol/codec.py``.
"""

from itertools import groupby
from typing import Any, Final

from protocol import limits
from protocol.errors import Fault
from protocol.layout import LayoutDifference, ModelLayout, RankLayout, TensorSpec
from protocol.messages import (
    Abort,
    AbortAck,
    Blocked,
    ChunkDone,
    ChunkReady,
    DataPiece,
    DoneStatus,
    Error,
    ErrorCode,
    Goodbye,
    GrantSlice,
    GrantStatus,
    Heartbeat,
    HeartbeatAck,
    Refused,
    RefusedCode,
    StagingReq,
    StagingRsp,
    Subscribe,
    Subscribed,
    Unsubscribe,
    WriteFailed,
)
from protocol.watermark import Watermark
from protocol.wire_fields import (
    Unfit,
    boolean,
    clamp,
    cut_text,
    descriptor,
    flat,
    identifier,
    integer,
    listing,
    name,
    optional,
    pair,
    seconds,
    short_id,
    text,
    word,
)
from protocol.wire_record import Field, Record

_uint63 = integer(0, limits.MAX_UINT63)
_uint64 = integer(0, limits.MAX_UINT64)
_size = integer(1, limits.MAX_UINT63)
_rank = integer(0, limits.MAX_RANKS - 1)
_ranks = integer(1, limits.MAX_RANKS)
_attempt = integer(0, limits.MAX_ATTEMPT)
_chunk = integer(0, limits.MAX_ROOM_TOKENS)
_token = integer(0, limits.MAX_ROOM_TOKENS)
_tokens = integer(1, limits.MAX_CHUNK_TOKENS)
_version = integer(1, limits.MAX_VERSION)
_watermark = pair(Watermark, _uint63)
_names = listing(identifier, limits.MAX_NAMES)
_reason = Field("reason", text(limits.MAX_TEXT_BYTES), write=cut_text(limits.MAX_TEXT_BYTES))
_message = Field("message", text(limits.MAX_TEXT_BYTES), write=cut_text(limits.MAX_TEXT_BYTES))
_word = short_id(limits.MAX_ID_BYTES, empty=True)
_session = Field("session", name)
_room = (_session, Field("room", identifier))
_place = (*_room, Field("chunk", _chunk))
_traceparent = Field("traceparent", optional(identifier), default=None)

# --- layout -----------------------------------------------------------------------------------------------------------

_TENSOR = Record(
    TensorSpec,
    Field("name", short_id(limits.MAX_TENSOR_NAME_BYTES)),
    Field("heads", integer(1, limits.MAX_HEADS)),
    Field("width", integer(1, limits.MAX_HEAD_BYTES)),
    Field("dtype", short_id(limits.MAX_DTYPE_BYTES)),
    Field("sharded", boolean, default=True),
)
_count = integer(1, limits.MAX_LAYERS)
_tensors = listing(_TENSOR.read, limits.MAX_TENSORS_PER_LAYER)


def _read_run(value: object) -> tuple[int, tuple[TensorSpec, ...]]:
    if type(value) is not list or len(value) != 2:
        raise Unfit(Fault.WRONG_TYPE, "a pair of a layer count and an array of tensors")
    try:
        count = _count(value[0])
    except Unfit as unfit:
        raise unfit.within("[0]") from None
    try:
        return count, _tensors(value[1])
    except Unfit as unfit:
        raise unfit.within("[1]") from None


_runs = listing(_read_run, limits.MAX_LAYERS)


def _read_layers(value: object) -> tuple[tuple[TensorSpec, ...], ...]:
    """Expand runs of equal layers; the counts are added up before anything is sized by them."""
    runs = _runs(value)
    if not 0 < sum(count for count, _ in runs) <= limits.MAX_LAYERS:
        raise Unfit(Fault.OUT_OF_RANGE, f"1 to {limits.MAX_LAYERS} layers in all")
    if sum(len(tensors) for _, tensors in runs) > limits.MAX_LAYOUT_TENSORS:
        raise Unfit(Fault.TOO_LARGE, f"at most {limits.MAX_LAYOUT_TENSORS} tensors in all runs together")
    return tuple(tensors for count, tensors in runs for _ in range(count))


def _write_layers(layers: tuple[tuple[TensorSpec, ...], ...]) -> list[object]:
    return [[len(list(run)), [_TENSOR.write(tensor) for tensor in tensors]] for tensors, run in groupby(layers)]


_MODEL = Record(ModelLayout, Field("layers", _read_layers, write=_write_layers))
LAYOUT = Record(
    RankLayout,
    Field("model", _MODEL.read, write=_MODEL.write),
    Field("tp_rank", _rank),
    Field("tp_size", _ranks),
    Field("pp_rank", _rank),
    Field("pp_size", _ranks),
    Field("stage_bounds", listing(integer(0, limits.MAX_LAYERS), limits.MAX_LAYERS + 1)),
)
_layout = Field("layout", LAYOUT.read, write=LAYOUT.write)

# --- subscribing --------------------------------------------------------------------------------------------------------


def _check_subscribe(message: Subscribe) -> None:
    low, high = message.versions
    if low > high:
        raise Unfit(Fault.INCONSISTENT, "the lowest version first", "versions")


_SUBSCRIBE = Record(
    Subscribe,
    Field("attempt", _attempt),
    Field("versions", pair(lambda low, high: (low, high), _version)),
    Field("features", _names),
    Field("prefill_id", identifier),
    Field("group", identifier),
    Field("incarnation", _uint63),
    Field("decode_rank", optional(_rank)),
    Field("chunk_tokens", _tokens),
    _layout,
    Field("planes", _names),
    Field("host_id", identifier),
    Field("stopped", optional(name), default=None),
    Field("lost", optional(name), default=None),
    check=_check_subscribe,
)
_SUBSCRIBED = Record(
    Subscribed,
    Field("attempt", _attempt),
    Field("incarnation", _uint63),
    Field("version", _version),
    Field("features", _names),
    _session,
    Field("decode_id", name),
    Field("decode_incarnation", _uint63),
    Field("decode_rank", _rank),
    Field("epoch", _uint64),
    Field("ring_size", _size),
    Field("plane", identifier),
    Field("region", descriptor, write=flat),
    Field("heartbeat_s", seconds(limits.MAX_DURATION_S, positive=True)),
    Field("lease_s", seconds(limits.MAX_DURATION_S, positive=True)),
    _layout,
)
_difference_text = text(limits.MAX_DIFFERENCE_TEXT_BYTES)
_cut_difference = cut_text(limits.MAX_DIFFERENCE_TEXT_BYTES)
_DIFFERENCE = Record(
    LayoutDifference,
    Field("field", _difference_text, write=_cut_difference),
    Field("prefill", _difference_text, write=_cut_difference),
    Field("decode", _difference_text, write=_cut_difference),
)


def _write_diff(diff: tuple[LayoutDifference, ...]) -> list[object]:
    return [_DIFFERENCE.write(difference) for difference in diff[: limits.MAX_DIFFERENCES]]


_REFUSED = Record(
    Refused,
    Field("attempt", _attempt),
    Field("code", word(RefusedCode)),
    _message,
    Field("diff", listing(_DIFFERENCE.read, limits.MAX_DIFFERENCES), default=(), write=_write_diff),
)

# --- moving a chunk -----------------------------------------------------------------------------------------------------


def _check_grant(grant: GrantSlice) -> None:
    if grant.offset >= grant.end:
        raise Unfit(Fault.INCONSISTENT, "an end after offset", "end")
    if grant.writer_offset + grant.writer_bytes > grant.end - grant.offset:
        raise Unfit(Fault.INCONSISTENT, "a slice within the grant", "writer_bytes")


_GRANT = Record(
    GrantSlice,
    Field("alloc_id", _uint63),
    Field("offset", _uint63),
    Field("round", _uint63),
    Field("end", _size),
    Field("writer_offset", _uint63),
    Field("writer_bytes", _size),
    check=_check_grant,
)


def _check_staging_rsp(message: StagingRsp) -> None:
    if (message.grant is not None) != (message.status is GrantStatus.GRANTED):
        raise Unfit(Fault.INCONSISTENT, "a grant exactly if status is granted", "grant")


_STAGING_REQ = Record(StagingReq, *_place, Field("token_start", _token), Field("num_tokens", _tokens), _traceparent)
_STAGING_RSP = Record(
    StagingRsp,
    *_place,
    Field("status", word(GrantStatus)),
    Field("watermark", _watermark),
    Field("grant", optional(_GRANT.read), default=None, write=_GRANT.write),
    _message._replace(default=""),
    check=_check_staging_rsp,
)
_granted = (*_place, Field("alloc_id", _uint63), Field("attempt", _attempt))
_CHUNK_READY = Record(ChunkReady, *_granted, Field("num_bytes", _size), Field("checksum", optional(_uint64)), _traceparent)
_WRITE_FAILED = Record(WriteFailed, *_granted, _reason)
_CHUNK_DONE = Record(ChunkDone, *_granted, Field("status", word(DoneStatus)), Field("code", _word, default=""))
_ABORT = Record(Abort, *_room, Field("abort_id", _uint63), _reason)
_ABORT_ACK = Record(AbortAck, *_room, Field("abort_id", _uint63))

# --- liveness and the end -----------------------------------------------------------------------------------------------

_BLOCKED = Record(
    Blocked,
    Field("room", identifier),
    Field("chunk", _chunk),
    Field("round", _uint63),
    Field("end", _size),
    Field("waited_s", seconds(limits.MAX_DURATION_S), write=clamp(limits.MAX_DURATION_S)),
)
_HEARTBEAT = Record(
    Heartbeat,
    _session,
    Field("seq", _uint63),
    Field("seen", _watermark),
    Field("blocked", optional(_BLOCKED.read), default=None, write=_BLOCKED.write),
)
_HEARTBEAT_ACK = Record(HeartbeatAck, _session, Field("seq", _uint63))
_UNSUBSCRIBE = Record(Unsubscribe, _session, _reason)
_GOODBYE = Record(Goodbye, _session, _reason)
_ERROR = Record(Error, _session, Field("code", word(ErrorCode)), _message, Field("in_reply_to", _word))

DATA: Final = Record(
    DataPiece,
    *_granted,
    Field("offset", _uint63),
    Field("num_bytes", integer(1, limits.MAX_DATA_PIECE_BYTES)),
)

TO_DECODE: Final[dict[bytes, Record[Any]]] = {
    b"SUBSCRIBE": _SUBSCRIBE,
    b"STAGING_REQ": _STAGING_REQ,
    b"CHUNK_READY": _CHUNK_READY,
    b"WRITE_FAILED": _WRITE_FAILED,
    b"ABORT": _ABORT,
    b"ABORT_ACK": _ABORT_ACK,
    b"HEARTBEAT": _HEARTBEAT,
    b"UNSUBSCRIBE": _UNSUBSCRIBE,
}
TO_PREFILL: Final[dict[bytes, Record[Any]]] = {
    b"SUBSCRIBED": _SUBSCRIBED,
    b"REFUSED": _REFUSED,
    b"STAGING_RSP": _STAGING_RSP,
    b"CHUNK_DONE": _CHUNK_DONE,
    b"ABORT": _ABORT,
    b"ABORT_ACK": _ABORT_ACK,
    b"HEARTBEAT_ACK": _HEARTBEAT_ACK,
    b"GOODBYE": _GOODBYE,
    b"ERROR": _ERROR,
}
BY_KIND: Final[dict[type[Any], tuple[bytes, Record[Any]]]] = {
    record.kind: (frame, record) for frame, record in (TO_DECODE | TO_PREFILL).items()
}
