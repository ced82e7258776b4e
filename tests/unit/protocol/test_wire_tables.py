"""The wire tables: every field has its type and bounds, and the largest legal message fits."""

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import limits
from protocol.codec import decode_to_decode, decode_to_prefill, encode
from protocol.errors import Fault, LocalProtocolError
from protocol.layout import LayoutDifference, ModelLayout, RankLayout, TensorSpec
from protocol.messages import Blocked, ChunkReady, Goodbye, Heartbeat, Refused, RefusedCode, StagingReq, Subscribe, Subscribed
from protocol.watermark import Watermark
from tests.unit.protocol.wire_bodies import (
    GRANT,
    LAYOUT,
    REQUEST,
    RESPONSE,
    SUBSCRIBE,
    SUBSCRIBED,
    Body,
    frames,
    refusal,
    refused_body,
)


def _subscribe(layout: RankLayout) -> Subscribe:
    names = tuple("f" * limits.MAX_ID_BYTES for _ in range(limits.MAX_NAMES))
    text = "x" * limits.MAX_ID_BYTES
    return Subscribe(
        limits.MAX_ATTEMPT,
        (1, limits.MAX_VERSION),
        names,
        text,
        text,
        limits.MAX_UINT63,
        4095,
        1 << 24,
        layout,
        names,
        text,
        text,
    )


def _largest_layout() -> RankLayout:
    tensor = TensorSpec("n" * limits.MAX_TENSOR_NAME_BYTES, limits.MAX_HEADS, limits.MAX_HEAD_BYTES, "d" * 16, sharded=False)
    layers = ((tensor,), ()) * limits.MAX_LAYOUT_TENSORS
    assert len(layers) == limits.MAX_LAYERS
    bounds = tuple(range(limits.MAX_LAYERS + 1))
    return RankLayout(ModelLayout(layers), limits.MAX_RANKS - 1, limits.MAX_RANKS, 0, limits.MAX_LAYERS, bounds)


class TestTheLargest:
    """The bounds on counts leave room: the largest legal message fits one control message."""

    def test_subscribe_fits(self) -> None:
        """A SUBSCRIBE with everything at its bound can be sent and read."""
        message = _subscribe(_largest_layout())
        assert decode_to_decode(encode(message)) == message

    def test_subscribed_fits(self) -> None:
        """A SUBSCRIBED with everything at its bound can be sent and read."""
        name = "x" * limits.MAX_ID_BYTES
        region = {f"k{index:02}": b"x" * 61 for index in range(limits.MAX_MAP_KEYS)}
        assert sum(len(key) + len(value) for key, value in region.items()) == limits.MAX_DESCRIPTOR_BYTES
        message = Subscribed(
            limits.MAX_ATTEMPT, limits.MAX_UINT63, limits.MAX_VERSION, (name,) * limits.MAX_NAMES, name, name,
            limits.MAX_UINT63, 4095, limits.MAX_UINT64, limits.MAX_UINT63, name, region, 1.5, 2.5, _largest_layout(),
        )  # fmt: skip
        assert decode_to_prefill(encode(message)) == message

    def test_refused_fits(self) -> None:
        """A REFUSED with the longest diff can be sent and read."""
        cell = "x" * limits.MAX_DIFFERENCE_TEXT_BYTES
        diff = (LayoutDifference(cell, cell, cell),) * limits.MAX_DIFFERENCES
        message = Refused(1, RefusedCode.LAYOUT, "x" * limits.MAX_TEXT_BYTES, diff)
        assert decode_to_prefill(encode(message)) == message

    def test_a_layout_that_cannot_fit_is_our_own_error(self) -> None:
        """A layout beyond the wire's bounds is reported where it was made, not by the peer."""
        layers = tuple((TensorSpec(f"{index:032}", 65_536, 1 << 20, "d" * 16),) for index in range(1024))
        with pytest.raises(LocalProtocolError, match=r"SUBSCRIBE has .* more than 65536"):
            encode(_subscribe(RankLayout(ModelLayout(layers), 0, 1, 0, 1, (0, 1024))))


class TestLayout:
    """The layout's wire form."""

    def test_equal_layers_are_sent_once(self) -> None:
        """Consecutive equal layers travel as one run, so a deep model costs no more than a shallow one."""
        layer = (TensorSpec("k", 8, 256, "bf16"), TensorSpec("v", 8, 256, "bf16"))
        body = msgpack.unpackb(encode(_subscribe(RankLayout(ModelLayout((layer,) * 80), 0, 4, 0, 1, (0, 80))))[1])
        assert [count for count, _ in body["layout"]["model"]["layers"]] == [80]


class TestTheSenderCuts:
    """Text and measured times that outgrow a receiver's bounds are cut by the sender, so they never cost a message."""

    @given(st.text(st.characters(), max_size=3000))
    def test_reason(self, reason: str) -> None:
        """Any reason at all arrives, cut to the bound at a character."""
        goodbye = decode_to_prefill(encode(Goodbye("s", reason)))
        assert isinstance(goodbye, Goodbye)
        assert len(goodbye.reason.encode()) <= limits.MAX_TEXT_BYTES
        assert reason.encode("utf-8", "replace").startswith(goodbye.reason.encode())

    def test_long_wait(self) -> None:
        """A probe after days of waiting is still a legal probe."""
        probe = Heartbeat("s", 1, Watermark(0, 0), Blocked("r", 0, 1, 10, waited_s=1e9))
        decoded = decode_to_decode(encode(probe))
        assert isinstance(decoded, Heartbeat)
        assert decoded.blocked is not None
        assert decoded.blocked.waited_s == limits.MAX_DURATION_S

    def test_long_diff(self) -> None:
        """A diff of any length arrives with its first rows."""
        row = LayoutDifference("f" * 999, "p" * 999, "d" * 999)
        refused = decode_to_prefill(encode(Refused(1, RefusedCode.LAYOUT, "m" * 9999, (row,) * 999)))
        assert isinstance(refused, Refused)
        assert len(refused.diff) == limits.MAX_DIFFERENCES

    def test_a_value_that_cannot_be_packed_is_our_own_error(self) -> None:
        """An integer beyond 64 bits from our own side raises LocalProtocolError."""
        with pytest.raises(LocalProtocolError, match="STAGING_REQ cannot be packed"):
            encode(StagingReq("s", "r", 2**70, 0, 1))


BAD_FIELDS = [
    ("STAGING_REQ", REQUEST, {"session": 7}, Fault.WRONG_TYPE, "session"),
    ("STAGING_REQ", REQUEST, {"session": b"s-1"}, Fault.WRONG_TYPE, "session"),
    ("STAGING_REQ", REQUEST, {"session": ""}, Fault.BAD_FORMAT, "session"),
    ("STAGING_REQ", REQUEST, {"session": "../../etc/passwd"}, Fault.BAD_FORMAT, "session"),
    ("STAGING_REQ", REQUEST, {"room": ""}, Fault.BAD_FORMAT, "room"),
    ("STAGING_REQ", REQUEST, {"room": "r" * 129}, Fault.BAD_FORMAT, "room"),
    ("STAGING_REQ", REQUEST, {"room": "r\n"}, Fault.BAD_FORMAT, "room"),
    ("STAGING_REQ", REQUEST, {"room": "räum"}, Fault.BAD_FORMAT, "room"),
    ("STAGING_REQ", REQUEST, {"room": 12}, Fault.WRONG_TYPE, "room"),
    ("STAGING_REQ", REQUEST, {"chunk": -1}, Fault.OUT_OF_RANGE, "chunk"),
    ("STAGING_REQ", REQUEST, {"chunk": 2**31 + 1}, Fault.OUT_OF_RANGE, "chunk"),
    ("STAGING_REQ", REQUEST, {"chunk": 2**64 - 1}, Fault.OUT_OF_RANGE, "chunk"),
    ("STAGING_REQ", REQUEST, {"chunk": True}, Fault.WRONG_TYPE, "chunk"),
    ("STAGING_REQ", REQUEST, {"chunk": 1.0}, Fault.WRONG_TYPE, "chunk"),
    ("STAGING_REQ", REQUEST, {"chunk": "1"}, Fault.WRONG_TYPE, "chunk"),
    ("STAGING_REQ", REQUEST, {"chunk": None}, Fault.WRONG_TYPE, "chunk"),
    ("STAGING_REQ", REQUEST, {"num_tokens": 0}, Fault.OUT_OF_RANGE, "num_tokens"),
    ("STAGING_REQ", REQUEST, {"traceparent": "x" * 129}, Fault.BAD_FORMAT, "traceparent"),
    ("SUBSCRIBE", SUBSCRIBE, {"versions": [2, 1]}, Fault.INCONSISTENT, "versions"),
    ("SUBSCRIBE", SUBSCRIBE, {"versions": [1]}, Fault.OUT_OF_RANGE, "versions"),
    ("SUBSCRIBE", SUBSCRIBE, {"versions": {"min": 1}}, Fault.WRONG_TYPE, "versions"),
    ("SUBSCRIBE", SUBSCRIBE, {"versions": [1, 0]}, Fault.OUT_OF_RANGE, "versions[1]"),
    ("SUBSCRIBE", SUBSCRIBE, {"planes": ["shm", 3]}, Fault.WRONG_TYPE, "planes[1]"),
    ("SUBSCRIBE", SUBSCRIBE, {"planes": ["shm"] * 17}, Fault.OUT_OF_RANGE, "planes"),
    ("SUBSCRIBE", SUBSCRIBE, {"incarnation": 2**63}, Fault.OUT_OF_RANGE, "incarnation"),
    ("SUBSCRIBE", SUBSCRIBE, {"stopped": "a/b"}, Fault.BAD_FORMAT, "stopped"),
    ("SUBSCRIBE", SUBSCRIBE, {"layout": []}, Fault.WRONG_TYPE, "layout"),
    ("SUBSCRIBE", SUBSCRIBE, {"layout": LAYOUT | {"tp_size": 0}}, Fault.OUT_OF_RANGE, "layout.tp_size"),
    ("SUBSCRIBE", SUBSCRIBE, {"layout": LAYOUT | {"model": {}}}, Fault.MISSING_FIELD, "layout.model.layers"),
]


def _with_layers(layers: object) -> dict[str, object]:
    return SUBSCRIBE | {"layout": LAYOUT | {"model": {"layers": layers}}}


class TestFields:
    """A field that does not fit is named, with what was expected and the session that was claimed."""

    @pytest.mark.parametrize(("kind", "body", "change", "code", "field"), BAD_FIELDS)
    def test_bad_field(self, kind: str, body: Body, change: Body, code: str, field: str) -> None:
        """Each kind of wrong value is refused under its own code and the field's full path."""
        assert refused_body(kind, body | change) == (code, field)

    @pytest.mark.parametrize(
        "layers", [[], [[0, []]], [[1025, []]], [[1024, []], [1, []]], [[2**40, []]], [["1", []]], [[True, []]]]
    )
    def test_layer_counts(self, layers: object) -> None:
        """No count in a layout sizes anything before the sum of all is known to be legal."""
        code, field = refused_body("SUBSCRIBE", _with_layers(layers))
        assert code in {Fault.OUT_OF_RANGE, Fault.WRONG_TYPE}
        assert field.startswith("layout.model.layers")

    @pytest.mark.parametrize("run", [7, [], [1], [1, [], []], {"count": 1}])
    def test_layer_run_shape(self, run: object) -> None:
        """A run of layers is a pair."""
        assert refused_body("SUBSCRIBE", _with_layers([[1, []], run])) == (Fault.WRONG_TYPE, "layout.model.layers[1]")

    def test_layer_tensor_path(self) -> None:
        """A fault deep inside a layout is named by its full path."""
        tensor = {"name": "k", "heads": 0, "width": 256, "dtype": "bf16"}
        error = refused_body("SUBSCRIBE", _with_layers([[1, [tensor]]]))
        assert error == (Fault.OUT_OF_RANGE, "layout.model.layers[0][1][0].heads")

    def test_tensors_of_all_runs_are_bounded(self) -> None:
        """A layout may not describe more tensors than always fit one message."""
        layer = [{"name": "k", "heads": 1, "width": 1, "dtype": "u8"}] * limits.MAX_TENSORS_PER_LAYER
        runs = [[1, layer]] * (limits.MAX_LAYOUT_TENSORS // limits.MAX_TENSORS_PER_LAYER)
        decode_to_decode(frames("SUBSCRIBE", _with_layers(runs)))
        assert refused_body("SUBSCRIBE", _with_layers([*runs, [1, layer[:1]]])) == (Fault.TOO_LARGE, "layout.model.layers")

    def test_expected_and_session_are_told(self) -> None:
        """The error carries what would have been right and whom to answer."""
        error = refusal(decode_to_decode, frames("STAGING_REQ", REQUEST | {"chunk": -1}))
        assert error.expected == f"an integer from 0 to {limits.MAX_ROOM_TOKENS}"
        assert error.session == "s-1"

    @pytest.mark.parametrize("session", [None, 3, "", "x" * 129, "\x00", "a/b"])
    def test_a_session_that_is_none_is_not_told(self, session: object) -> None:
        """A claimed session that cannot be one is not passed on."""
        assert refusal(decode_to_decode, frames("STAGING_REQ", REQUEST | {"session": session})).session is None

    @pytest.mark.parametrize("waited_s", [float("nan"), float("inf"), -1.0, 86_401, "1", True, None])
    def test_durations_are_finite_and_bounded(self, waited_s: object) -> None:
        """A duration that is no number, not finite, negative or absurd is refused."""
        blocked = {"room": "r", "chunk": 0, "round": 1, "end": 2, "waited_s": waited_s}
        body = {"session": "s", "seq": 1, "seen": [0, 0], "blocked": blocked}
        assert refused_body("HEARTBEAT", body)[1] == "blocked.waited_s"

    def test_an_integer_is_a_duration(self) -> None:
        """Encoders that shorten 2.0 to 2 are understood."""
        blocked = {"room": "r", "chunk": 0, "round": 1, "end": 2, "waited_s": 2}
        message = decode_to_decode(frames("HEARTBEAT", {"session": "s", "seq": 1, "seen": [0, 0], "blocked": blocked}))
        assert message == Heartbeat("s", 1, Watermark(0, 0), Blocked("r", 0, 1, 2, 2.0))

    @pytest.mark.parametrize("checksum", [None, 0, 2**64 - 1])
    def test_checksum(self, checksum: int | None) -> None:
        """A checksum takes the whole range of 64 bits, or is nil."""
        message = ChunkReady("s", "r", 0, 1, 1, 10, checksum)
        assert decode_to_decode(encode(message)) == message


class TestResponses:
    """What a decode rank may say about a grant."""

    def test_a_grant_comes_exactly_with_granted(self) -> None:
        """``granted`` without a grant and a grant without ``granted`` are both refused."""
        missing = refusal(decode_to_prefill, frames("STAGING_RSP", RESPONSE | {"status": "granted"}))
        unasked = refusal(decode_to_prefill, frames("STAGING_RSP", RESPONSE | {"grant": GRANT}))
        assert (missing.code, missing.field) == (unasked.code, unasked.field) == (Fault.INCONSISTENT, "grant")

    @pytest.mark.parametrize(
        ("change", "field"),
        [({"end": 0}, "grant.end"), ({"offset": 100}, "grant.end"), ({"writer_bytes": 51}, "grant.writer_bytes"),
         ({"writer_offset": 51}, "grant.writer_bytes"), ({"writer_bytes": 0}, "grant.writer_bytes"),
         ({"round": -1}, "grant.round"), ({"alloc_id": None}, "grant.alloc_id")],
    )  # fmt: skip
    def test_a_slice_lies_within_its_grant(self, change: Body, field: str) -> None:
        """A grant that ends before it starts, or a slice that leaves it, never reaches a writer."""
        body = RESPONSE | {"status": "granted", "grant": GRANT | change}
        assert refusal(decode_to_prefill, frames("STAGING_RSP", body)).field == field

    @pytest.mark.parametrize("status", ["", "GRANTED", "maybe", 1, None])
    def test_status_is_one_of_the_words(self, status: object) -> None:
        """Any other status is refused."""
        assert refusal(decode_to_prefill, frames("STAGING_RSP", RESPONSE | {"status": status})).field == "status"

    @pytest.mark.parametrize("watermark", [None, [], [1], [1, 2, 3], [1, -1], [1, "2"], {"round": 1}])
    def test_watermark_is_a_pair(self, watermark: object) -> None:
        """A watermark in a body is an array of two integers."""
        error = refusal(decode_to_prefill, frames("STAGING_RSP", RESPONSE | {"watermark": watermark}))
        assert error.field.startswith("watermark")

    @pytest.mark.parametrize(
        ("region", "field"),
        [(None, "region"), ({"a": None}, "region.a"), ({"a": -1}, "region.a"), ({"a": True}, "region.a"),
         ({"a": []}, "region.a"), ({"": 1}, "region"), ({"ä": 1}, "region"),
         ({"a": "x" * 4096}, "region"), ({"a": 1.5}, "region.a")],
    )  # fmt: skip
    def test_descriptor(self, region: object, field: str) -> None:
        """A region descriptor is a flat, bounded map of integers, texts and bytes."""
        decode_to_prefill(frames("SUBSCRIBED", SUBSCRIBED))
        assert refusal(decode_to_prefill, frames("SUBSCRIBED", SUBSCRIBED | {"region": region})).field == field
