"""Frames to messages and back: whatever a peer sent becomes one checked message or one ``RemoteProtocolError``.

``WATERMARK`` is four ASCII frames; every other message is two frames, the ASCII type and a msgpack map with string keys. The
tables of ``protocol/wire_tables.py`` say which keys; this file says how bytes are opened without trusting them: sizes before
parsing, no extension types, no repeated keys, no deep nesting, nothing after the map. No other file opens a peer's bytes.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, NoReturn, TypeVar, cast

import msgpack

from protocol.errors import Fault, LocalProtocolError, RemoteProtocolError
from protocol.identifiers import NAME_EXPECTED, is_name
from protocol.limits import MAX_CONTROL_MESSAGE_BYTES, MAX_DEPTH, MAX_FRAMES, MAX_LIST_ITEMS, MAX_MAP_KEYS, MAX_UINT63
from protocol.messages import DataPiece, Message, ToDecode, ToPrefill, WatermarkUpdate
from protocol.wire_fields import Unfit
from protocol.wire_record import Record
from protocol.wire_tables import BY_KIND, DATA, TO_DECODE, TO_PREFILL

T = TypeVar("T")

WATERMARK_FRAME: Final = b"WATERMARK"
DATA_FRAME: Final = b"DATA"

_BODY_EXPECTED: Final = "one msgpack map with unique string keys, no extension types and nothing after it"
_DECIMAL_EXPECTED: Final = f"a decimal from 0 to {MAX_UINT63} without sign or padding"
_MAX_DECIMAL_DIGITS: Final = len(str(MAX_UINT63))
_KNOWN_TYPES: Final = frozenset({*TO_DECODE, *TO_PREFILL, WATERMARK_FRAME, DATA_FRAME})
_NAMES: Final[dict[type[Any], str]] = {
    **{kind: frame.decode("ascii") for kind, (frame, _) in BY_KIND.items()},
    WatermarkUpdate: WATERMARK_FRAME.decode("ascii"),
    DataPiece: DATA_FRAME.decode("ascii"),
}


def frame_name(kind: type[Message] | type[DataPiece]) -> str:
    """What a type of message is called on the wire."""
    return _NAMES[kind]


def encode(message: Message) -> list[bytes]:
    """Turn a message into its frames; raise ``LocalProtocolError`` for one that no peer could accept in size or type."""
    if type(message) is WatermarkUpdate:
        return [WATERMARK_FRAME, b"%d" % message.round, b"%d" % message.tail, message.session.encode("ascii")]
    kind, record = BY_KIND[type(message)]
    return [kind, _pack(kind, record.write(message))]


def encode_data(piece: DataPiece) -> list[bytes]:
    """Turn the header of one piece into two frames; the payload is the third, added by the caller without a copy."""
    return [DATA_FRAME, _pack(DATA_FRAME, DATA.write(piece))]


def decode_to_decode(frames: Sequence[bytes]) -> ToDecode:
    """Read a message that a prefill rank sent. Raises nothing but ``RemoteProtocolError``, whatever the frames hold."""
    return cast(ToDecode, _decode(frames, TO_DECODE))


def decode_to_prefill(frames: Sequence[bytes]) -> ToPrefill:
    """Read a message that a decode rank sent. Raises nothing but ``RemoteProtocolError``, whatever the frames hold."""
    if frames and frames[0] == WATERMARK_FRAME:
        return _read_watermark(frames)
    return cast(ToPrefill, _decode(frames, TO_PREFILL))


def decode_data_header(header: bytes) -> DataPiece:
    """Read the header of one piece of payload. Raises nothing but ``RemoteProtocolError``, whatever it holds."""
    if len(header) > MAX_CONTROL_MESSAGE_BYTES:
        _refuse(Fault.TOO_LARGE, "header", f"at most {MAX_CONTROL_MESSAGE_BYTES} bytes")
    return _read_body(DATA, header)


def _pack(kind: bytes, body: dict[str, object]) -> bytes:
    try:
        packed = cast(bytes, msgpack.packb(body))
    except (TypeError, ValueError, OverflowError) as error:
        raise LocalProtocolError(f"{kind.decode()} cannot be packed: {error}") from error
    if len(kind) + len(packed) > MAX_CONTROL_MESSAGE_BYTES:
        raise LocalProtocolError(f"{kind.decode()} has {len(packed)} bytes, more than {MAX_CONTROL_MESSAGE_BYTES}")
    return packed


def _refuse(code: Fault, field: str, expected: str, session: str | None = None) -> NoReturn:
    raise RemoteProtocolError(code, field, expected, session)


def _check_envelope(frames: Sequence[bytes], count: int) -> None:
    if not 0 < len(frames) <= MAX_FRAMES or (frames[0] in _KNOWN_TYPES and len(frames) != count):
        _refuse(Fault.FRAME_COUNT, "frames", f"{count} frames, not {len(frames)}")
    if sum(map(len, frames)) > MAX_CONTROL_MESSAGE_BYTES:
        _refuse(Fault.TOO_LARGE, "frames", f"at most {MAX_CONTROL_MESSAGE_BYTES} bytes")


def _decode(frames: Sequence[bytes], records: dict[bytes, Record[Any]]) -> object:
    _check_envelope(frames, 2)
    record = records.get(frames[0])
    if record is not None:
        return _read_body(record, frames[1])
    session = _claimed_session(frames[1]) if len(frames) == 2 else None
    code = Fault.WRONG_DIRECTION if frames[0] in _KNOWN_TYPES else Fault.UNKNOWN_TYPE
    _refuse(code, "type", "one of " + ", ".join(kind.decode() for kind in records), session)


def _read_body(record: Record[T], packed: bytes) -> T:
    session = None
    try:
        body = _unpack(packed)
        session = _session_of(body)
        _check_depth(body)
        return record.read(body)
    except Unfit as unfit:
        raise RemoteProtocolError(unfit.code, unfit.path or "body", unfit.expected, session) from None


def _unpack(packed: bytes) -> dict[str, Any]:
    try:
        body = msgpack.unpackb(
            packed,
            strict_map_key=True,
            object_pairs_hook=_unique_string_keys,
            ext_hook=_no_extensions,
            max_map_len=MAX_MAP_KEYS,
            max_array_len=MAX_LIST_ITEMS,
            max_ext_len=0,
        )
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException):
        raise Unfit(Fault.UNDECODABLE, _BODY_EXPECTED) from None
    if type(body) is not dict:
        raise Unfit(Fault.UNDECODABLE, _BODY_EXPECTED)
    return body


def _unique_string_keys(pairs: list[tuple[object, object]]) -> dict[object, object]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs) or not all(type(key) is str for key in mapping):
        raise Unfit(Fault.UNDECODABLE, _BODY_EXPECTED)
    return mapping


def _no_extensions(_code: int, _data: bytes) -> NoReturn:
    raise Unfit(Fault.UNDECODABLE, _BODY_EXPECTED)


def _check_depth(body: dict[str, Any]) -> None:
    """Bound how deep containers nest, also under keys that nobody reads."""
    level: list[dict[str, object] | list[object]] = [body]
    for _ in range(MAX_DEPTH):
        level = [item for outer in level for item in _items(outer) if isinstance(item, dict | list)]
        if not level:
            return
    raise Unfit(Fault.UNDECODABLE, f"at most {MAX_DEPTH} containers inside each other")


def _items(container: dict[str, object] | list[object]) -> Iterable[object]:
    return container.values() if isinstance(container, dict) else container


def _session_of(body: dict[str, Any]) -> str | None:
    session = body.get("session")
    return session if type(session) is str and is_name(session) else None


def _claimed_session(packed: bytes) -> str | None:
    try:
        return _session_of(_unpack(packed))
    except Unfit:
        return None


def _read_watermark(frames: Sequence[bytes]) -> WatermarkUpdate:
    _check_envelope(frames, 4)
    session = frames[3].decode("ascii", "replace")
    if not is_name(session):
        _refuse(Fault.BAD_FORMAT, "session", NAME_EXPECTED)
    round, tail = (_decimal(frames[at], field, session) for at, field in ((1, "round"), (2, "tail")))
    return WatermarkUpdate(round, tail, session)


def _decimal(frame: bytes, field: str, session: str) -> int:
    """Read plain decimal digits. Their number is bounded first: ``int`` is quadratic in it."""
    if not frame.isdigit() or len(frame) > _MAX_DECIMAL_DIGITS or (frame[0] == ord("0") and len(frame) > 1):
        _refuse(Fault.BAD_FORMAT, field, _DECIMAL_EXPECTED, session)
    value = int(frame)
    if value > MAX_UINT63:
        _refuse(Fault.OUT_OF_RANGE, field, _DECIMAL_EXPECTED, session)
    return value
