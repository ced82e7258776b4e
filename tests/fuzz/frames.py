"""What the fuzzer's bytes mean, and what must hold of them. No fuzzer is needed here, so the kept corpus is also a test.

The first byte chooses a decoder, the second a message type, the rest is the body; or, for the fourth decoder, all frames of a
message with a separator between them.
"""

from collections.abc import Callable

from protocol.codec import decode_data_header, decode_to_decode, decode_to_prefill, encode, encode_data
from protocol.errors import Fault, RemoteProtocolError
from protocol.messages import DataPiece, Message
from protocol.wire_tables import TO_DECODE, TO_PREFILL

KINDS = (*sorted({*TO_DECODE, *TO_PREFILL}), b"WATERMARK", b"DATA", b"NEWS", b"")
SEPARATOR = b"\x1e"
RAW = 3
_DECODERS: tuple[Callable[[list[bytes]], object], ...] = (
    decode_to_decode,
    decode_to_prefill,
    lambda frames: decode_data_header(frames[-1]),
)


def to_input(decoder: int, frames: list[bytes]) -> bytes:
    """The fuzzer's bytes that stand for these frames."""
    if decoder != RAW and len(frames) == 2 and frames[0] in KINDS:
        return bytes((decoder, KINDS.index(frames[0]))) + frames[1]
    return bytes((RAW, 0)) + SEPARATOR.join(frames)


def check(data: bytes) -> None:
    """Every decoder that the bytes ask for gives a message that survives its own encoding, or one proper refusal."""
    if len(data) < 2:
        return
    decoder, kind, rest = data[0] % (RAW + 1), KINDS[data[1] % len(KINDS)], data[2:]
    if decoder == RAW:
        frames = rest.split(SEPARATOR)
        for decode in _DECODERS[:2]:
            _check(decode, frames)
    else:
        _check(_DECODERS[decoder], [kind, rest])


def _check(decode: Callable[[list[bytes]], object], frames: list[bytes]) -> None:
    outcome = _outcome(decode, frames)
    if isinstance(outcome, RemoteProtocolError):
        assert outcome.code in set(Fault)
        assert outcome.field
        assert outcome.expected
    else:
        assert decode(_encode(outcome)) == outcome


def _outcome(decode: Callable[[list[bytes]], object], frames: list[bytes]) -> object:
    try:
        return decode(frames)
    except RemoteProtocolError as error:
        return error


def _encode(message: object) -> list[bytes]:
    if isinstance(message, DataPiece):
        return encode_data(message)
    assert isinstance(message, Message)
    return encode(message)
