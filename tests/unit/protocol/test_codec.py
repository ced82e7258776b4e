"""The codec: every message survives the wire, and only well-formed frames are opened."""

import pytest
from hypothesis import given

from protocol import limits
from protocol.codec import decode_data_header, decode_to_decode, decode_to_prefill, encode, encode_data
from protocol.errors import Fault, RemoteProtocolError
from protocol.messages import (
    DataPiece,
    Goodbye,
    GrantStatus,
    Message,
    StagingReq,
    StagingRsp,
    ToDecode,
    ToPrefill,
    WatermarkUpdate,
)
from protocol.watermark import Watermark
from tests.unit.protocol import wire_strategies
from tests.unit.protocol.wire_bodies import REQUEST, RESPONSE, frames, refusal, refused_body


def nested(depth: int) -> object:
    """A value that is ``depth`` arrays inside each other."""
    value: object = 0
    for _ in range(depth):
        value = [value]
    return value


class TestEveryMessageSurvives:
    """What is encoded on one side is decoded to an equal message on the other."""

    @given(wire_strategies.to_decode)
    def test_to_decode(self, message: ToDecode) -> None:
        """A message from a prefill rank survives the wire."""
        assert decode_to_decode(encode(message)) == message

    @given(wire_strategies.to_prefill)
    def test_to_prefill(self, message: ToPrefill) -> None:
        """A message from a decode rank survives the wire."""
        assert decode_to_prefill(encode(message)) == message

    @given(wire_strategies.data_pieces)
    def test_data(self, piece: DataPiece) -> None:
        """The header of a piece of payload survives the wire."""
        kind, header = encode_data(piece)
        assert kind == b"DATA"
        assert decode_data_header(header) == piece

    @given(wire_strategies.to_decode | wire_strategies.to_prefill)
    def test_frames_stay_within_the_bounds(self, message: Message) -> None:
        """No message has more frames or bytes than a receiver accepts."""
        encoded = encode(message)
        assert len(encoded) == (4 if isinstance(message, WatermarkUpdate) else 2)
        assert sum(map(len, encoded)) <= limits.MAX_CONTROL_MESSAGE_BYTES

    def test_watermark_is_four_ascii_frames(self) -> None:
        """The watermark's frames are exactly those of the specification."""
        assert encode(WatermarkUpdate(3, 0, "session-new")) == [b"WATERMARK", b"3", b"0", b"session-new"]


class TestEnvelope:
    """Number, size and type of frames are checked before anything is parsed."""

    @pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 100])
    def test_frame_count(self, count: int) -> None:
        """A known type with any other number of frames than two is refused."""
        error = refusal(decode_to_decode, (frames("HEARTBEAT", {}) + [b""] * 100)[:count])
        assert (error.code, error.field) == (Fault.FRAME_COUNT, "frames")

    @pytest.mark.parametrize("count", [1, 2, 3, 5])
    def test_watermark_frame_count(self, count: int) -> None:
        """A watermark has four frames and nothing else."""
        error = refusal(decode_to_prefill, [b"WATERMARK", b"1", b"2", b"s", b""][:count])
        assert error.code == Fault.FRAME_COUNT

    def test_too_large(self) -> None:
        """A message over 64 KiB is refused without being parsed."""
        error = refusal(decode_to_decode, [b"HEARTBEAT", b"\x81" + b"x" * limits.MAX_CONTROL_MESSAGE_BYTES])
        assert (error.code, error.field) == (Fault.TOO_LARGE, "frames")

    def test_too_large_data_header(self) -> None:
        """A data header over 64 KiB is refused without being parsed."""
        with pytest.raises(RemoteProtocolError) as caught:
            decode_data_header(b"x" * (limits.MAX_CONTROL_MESSAGE_BYTES + 1))
        assert caught.value.code == Fault.TOO_LARGE

    def test_unknown_type(self) -> None:
        """A type nobody knows is named as such, with the session that its body claims."""
        error = refusal(decode_to_decode, frames("FROM_THE_FUTURE", {"session": "s-1", "x": 1}))
        assert (error.code, error.field, error.session) == ("unknown_type", "type", "s-1")

    def test_unknown_type_with_an_unreadable_body(self) -> None:
        """An unknown type is the complaint, whatever the body is."""
        error = refusal(decode_to_decode, [b"FROM_THE_FUTURE", b"\xc1"])
        assert (error.code, error.session) == (Fault.UNKNOWN_TYPE, None)

    def test_wrong_direction(self) -> None:
        """A message that only the other side may send is refused by both."""
        assert refusal(decode_to_decode, encode(Goodbye("s", ""))).code == Fault.WRONG_DIRECTION
        assert refusal(decode_to_prefill, encode(StagingReq("s", "r", 0, 0, 1))).code == Fault.WRONG_DIRECTION
        assert refusal(decode_to_decode, [b"WATERMARK", b"0"]).code in {Fault.WRONG_DIRECTION, Fault.FRAME_COUNT}

    def test_http(self) -> None:
        """A web browser on the control port gets one plain refusal."""
        request = b"GET / HTTP/1.1\r\nHost: localhost:7600\r\n\r\n"
        assert refusal(decode_to_decode, [request]).code == Fault.UNKNOWN_TYPE
        assert refusal(decode_to_decode, [b"HEARTBEAT", request]).code == Fault.UNDECODABLE


class TestBody:
    """A body is one msgpack map with unique string keys and nothing else."""

    @pytest.mark.parametrize(
        "packed",
        [
            b"",
            b"\xc1",
            b"\xc0",
            b"\x90",
            b"\x81",
            b"\x81\xa1a",
            b"\x80\x80",
            b"\x81\x01\x01",
            b"\x81\xc4\x01a\x01",
            b"\x82\xa1a\x01\xa1a\x02",
            b"\x81\xa1\xff\x01",
            b"\x81\xa1a\xa1\xff",
            b"\x81\xa1a\xd6\xff\x00\x00\x00\x00",
            b"\x81\xa1a\xc7\x00\x05",
            b"\x81\xa1a\xd4\x05\x00",
            b"\x81\xa1a\xdd\xff\xff\xff\xff",
            b"\xdf\xff\xff\xff\xff",
            b"\x81\xa1a\xc6\xff\xff\xff\xff",
            b"\x81\x90\x01",
            b"\x91" * 30_000,
            b"\x81\xa1a" * 10_000 + b"\xc0",
        ],
        ids=lambda packed: packed[:12].hex() or "empty",
    )
    def test_undecodable(self, packed: bytes) -> None:
        """Bytes that are not such a map are refused as undecodable."""
        error = refusal(decode_to_decode, [b"HEARTBEAT", packed])
        assert (error.code, error.field) == (Fault.UNDECODABLE, "body")

    def test_unknown_keys_are_ignored(self) -> None:
        """A key of a newer peer changes nothing."""
        assert decode_to_decode(frames("STAGING_REQ", REQUEST | {"priority": 3})) == StagingReq("s-1", "r-1", 0, 0, 16)

    def test_unknown_keys_are_counted(self) -> None:
        """64 keys are accepted and 65 are not, whatever they are called."""
        extra = {f"extra{index}": index for index in range(limits.MAX_MAP_KEYS - len(REQUEST))}
        decode_to_decode(frames("STAGING_REQ", REQUEST | extra))
        assert refused_body("STAGING_REQ", REQUEST | extra | {"one more": 1}) == (Fault.UNDECODABLE, "body")

    def test_depth_is_bounded_under_unknown_keys(self) -> None:
        """Containers nest at most eight deep, the body included, even where nobody reads them."""
        decode_to_decode(frames("STAGING_REQ", REQUEST | {"extra": nested(limits.MAX_DEPTH - 1)}))
        assert refused_body("STAGING_REQ", REQUEST | {"extra": nested(limits.MAX_DEPTH)}) == (Fault.UNDECODABLE, "body")
        assert refused_body("STAGING_REQ", REQUEST | {"extra": nested(500)}) == (Fault.UNDECODABLE, "body")

    def test_list_length_is_bounded(self) -> None:
        """No array may be longer than the bound, even where nobody reads it."""
        long = [0] * (limits.MAX_LIST_ITEMS + 1)
        assert refused_body("STAGING_REQ", REQUEST | {"extra": long}) == (Fault.UNDECODABLE, "body")

    def test_optional_keys(self) -> None:
        """An optional key that is absent means the same as nil."""
        absent = decode_to_prefill(frames("STAGING_RSP", RESPONSE))
        assert absent == decode_to_prefill(frames("STAGING_RSP", RESPONSE | {"grant": None}))
        assert absent == StagingRsp("s-1", "r-1", 0, GrantStatus.PENDING, Watermark(3, 0))


class TestWatermarkFrames:
    """Decimal digits without sign or padding, byte for byte."""

    @pytest.mark.parametrize(
        "digits", [b"", b"00", b"01", b"+1", b"-1", b" 1", b"1 ", b"1_0", b"0x1", b"1.0", b"\xd9\xa1", b"9" * 20, b"1" * 60_000]
    )
    @pytest.mark.parametrize("at", [1, 2])
    def test_refused(self, digits: bytes, at: int) -> None:
        """Anything else than a plain decimal names the frame that holds it and the session."""
        message = [b"WATERMARK", b"0", b"0", b"s-1"]
        message[at] = digits
        error = refusal(decode_to_prefill, message)
        assert (error.code, error.field, error.session) == (Fault.BAD_FORMAT, ("", "round", "tail")[at], "s-1")

    def test_bounds(self) -> None:
        """The largest value is 2**63 - 1 and zero is b"0"."""
        largest = str(limits.MAX_UINT63).encode()
        assert decode_to_prefill([b"WATERMARK", largest, b"0", b"s"]) == WatermarkUpdate(limits.MAX_UINT63, 0, "s")
        error = refusal(decode_to_prefill, [b"WATERMARK", b"0", str(2**63).encode(), b"s"])
        assert (error.code, error.field) == (Fault.OUT_OF_RANGE, "tail")

    @pytest.mark.parametrize("session", [b"", b"\xff", b"a b", b"x" * 129, b".hidden", b"a/b"])
    def test_session(self, session: bytes) -> None:
        """The session frame is a name."""
        error = refusal(decode_to_prefill, [b"WATERMARK", b"0", b"0", session])
        assert (error.code, error.field, error.session) == (Fault.BAD_FORMAT, "session", None)
