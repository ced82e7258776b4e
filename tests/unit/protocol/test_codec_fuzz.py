"""Whatever a peer sends, the codec's outcome is one message or one ``RemoteProtocolError``."""

from collections.abc import Callable
from functools import partial

import msgpack
from hypothesis import example, given, settings
from hypothesis import strategies as st

from protocol.codec import decode_data_header, decode_to_decode, decode_to_prefill, encode
from protocol.errors import Fault, RemoteProtocolError
from protocol.messages import Message, ToDecode
from tests.unit.protocol import wire_strategies
from tests.unit.protocol.wire_bodies import GRANT, LAYOUT, REQUEST, RESPONSE, SUBSCRIBE


def _refusal(decode: Callable[[], object]) -> RemoteProtocolError | None:
    try:
        decode()
    except RemoteProtocolError as error:
        return error
    return None


def _never_more_than_refused(message: list[bytes]) -> None:
    attempts: list[Callable[[], object]] = [partial(decode_to_decode, message), partial(decode_to_prefill, message)]
    attempts += [partial(decode_data_header, frame) for frame in message]
    for error in filter(None, map(_refusal, attempts)):
        assert error.code in set(Fault)
        assert error.field
        assert error.expected


KINDS = (
    b"SUBSCRIBE", b"SUBSCRIBED", b"REFUSED", b"WATERMARK", b"STAGING_REQ", b"STAGING_RSP", b"CHUNK_READY", b"WRITE_FAILED",
    b"CHUNK_DONE", b"ABORT", b"ABORT_ACK", b"HEARTBEAT", b"HEARTBEAT_ACK", b"UNSUBSCRIBE", b"GOODBYE", b"ERROR", b"DATA",
)  # fmt: skip
FIELDS = sorted(
    {*REQUEST, *RESPONSE, *GRANT, *LAYOUT, *SUBSCRIBE, "abort_id", "reason", "seq", "seen", "region", "code", "diff"}
)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=8) | st.binary(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=12,
)


class TestNothingElseIsRaised:
    """Whatever the frames hold, the outcome is a message or a RemoteProtocolError."""

    @given(st.lists(st.sampled_from(KINDS) | st.binary(max_size=60), max_size=6))
    @example([b"HEARTBEAT", b"\x91" * 60_000])
    def test_random_frames(self, message: list[bytes]) -> None:
        """Random frames never raise anything else."""
        _never_more_than_refused(message)

    @given(st.sampled_from(KINDS), st.dictionaries(st.sampled_from(FIELDS), values, max_size=12))
    def test_random_bodies(self, kind: bytes, body: dict[str, object]) -> None:
        """Known types with maps of any values never raise anything else."""
        _never_more_than_refused([kind, msgpack.packb(body)])

    @settings(max_examples=300)
    @given(st.data(), wire_strategies.to_decode | wire_strategies.to_prefill)
    def test_flipped_bytes(self, data: st.DataObject, message: Message) -> None:
        """A valid message with some bytes changed, cut or repeated never raises anything else."""
        encoded = [bytearray(frame) for frame in encode(message)]
        for _ in range(data.draw(st.integers(1, 4))):
            frame = data.draw(st.sampled_from([frame for frame in encoded if frame]))
            at = data.draw(st.integers(0, len(frame) - 1))
            match data.draw(st.sampled_from(["flip", "cut", "repeat"])):
                case "flip":
                    frame[at] = data.draw(st.integers(0, 255))
                case "cut":
                    del frame[max(at, 1) :]
                case _:
                    frame[at:at] = frame[at : at + 8]
        _never_more_than_refused([bytes(frame) for frame in encoded])

    @given(st.data(), wire_strategies.to_decode | wire_strategies.to_prefill)
    def test_replaced_fields(self, data: st.DataObject, message: Message) -> None:
        """A valid body with one key dropped or given any other value never raises anything else."""
        kind, *rest = encode(message)
        if kind == b"WATERMARK":
            return
        body = msgpack.unpackb(rest[0])
        key = data.draw(st.sampled_from(sorted(body)))
        if data.draw(st.booleans()):
            body[key] = data.draw(values)
        else:
            del body[key]
        _never_more_than_refused([kind, msgpack.packb(body)])

    @given(wire_strategies.to_decode)
    def test_every_required_key_is_missed_by_name(self, message: ToDecode) -> None:
        """Dropping a key either means its default or is refused under that key's name."""
        kind, packed = encode(message)
        body = msgpack.unpackb(packed)
        for key in body:
            rest = {name: value for name, value in body.items() if name != key}
            error = _refusal(partial(decode_to_decode, [kind, msgpack.packb(rest)]))
            if error is None:
                assert key in {"stopped", "lost", "traceparent", "blocked"}
            else:
                assert (error.code, error.field) == (Fault.MISSING_FIELD, key)
