"""``docs/vectors.json`` is true of this implementation: frames, refusals, readiness, ring histories and head slices."""

import json
from pathlib import Path
from typing import Any

import pytest

from decode_service.allocator import Oversized, StagingAllocator
from protocol import PROTOCOL_VERSION
from protocol.codec import decode_data_header, decode_to_decode, decode_to_prefill, encode, encode_data
from protocol.errors import Fault, RemoteProtocolError
from protocol.layout import ModelLayout, RankLayout, TensorSpec, even_stage_bounds, expected_writers, writer_offsets
from protocol.messages import DataPiece
from protocol.watermark import is_watermark_ready
from tests.conformance.meaning import KINDS, from_meaning, to_meaning

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[2] / "docs" / "vectors.json").read_text(encoding="utf-8"))


def cases(section: str) -> pytest.MarkDecorator:
    """Parametrize over one section of the file."""
    return pytest.mark.parametrize("case", [pytest.param(case, id=case["name"]) for case in VECTORS[section]])


def _frames(case: dict[str, Any]) -> list[bytes]:
    return [bytes.fromhex(frame) for frame in case["frames"]]


def _decode(direction: str, frames: list[bytes]) -> object:
    match direction:
        case "to_decode":
            return decode_to_decode(frames)
        case "to_prefill":
            return decode_to_prefill(frames)
        case "data":
            return decode_data_header(frames[1])
    raise AssertionError(direction)


def test_the_file_is_of_this_version() -> None:
    """The vectors state the protocol version they belong to."""
    assert VECTORS["protocol_version"] == PROTOCOL_VERSION


def test_every_message_type_has_a_vector() -> None:
    """No type of message is left out."""
    assert {case["message"]["type"] for case in VECTORS["valid"]} == set(KINDS)


def test_every_fault_has_a_vector() -> None:
    """No kind of refusal is left out."""
    assert {case["error"]["code"] for case in VECTORS["invalid"]} == set(Fault)


@cases("valid")
def test_valid_frames_mean_what_is_stated(case: dict[str, Any]) -> None:
    """Decoding gives the stated message, and stating that message as JSON gives the vector back."""
    message = _decode(case["direction"], _frames(case))
    assert message == from_meaning(case["message"])
    assert to_meaning(message) == case["message"]


@cases("valid")
def test_messages_are_encoded_to_exactly_these_frames(case: dict[str, Any]) -> None:
    """Encoding the stated message gives the frames, byte for byte."""
    message = from_meaning(case["message"])
    if isinstance(message, DataPiece):
        payload = _frames(case)[2]
        assert [*encode_data(message), payload] == _frames(case)
        assert message.num_bytes == len(payload)
    else:
        assert encode(message) == _frames(case)


@cases("tolerated")
def test_other_encodings_are_understood(case: dict[str, Any]) -> None:
    """Frames that a newer or less careful peer may send mean the stated message, though we would not encode it so."""
    assert _decode(case["direction"], _frames(case)) == from_meaning(case["message"])


@cases("invalid")
def test_invalid_frames_are_refused_as_stated(case: dict[str, Any]) -> None:
    """Code, field and claimed session of the refusal are the stated ones."""
    with pytest.raises(RemoteProtocolError) as caught:
        _decode(case["direction"], _frames(case))
    error = caught.value
    assert {"code": error.code, "field": error.field, "session": error.session} == case["error"]


@cases("readiness")
def test_readiness(case: dict[str, Any]) -> None:
    """The gate's rule gives the stated answer."""
    assert is_watermark_ready(tuple(case["watermark"]), case["round"], case["end"]) is case["ready"]


@cases("rings")
def test_ring_histories(case: dict[str, Any]) -> None:
    """After every step of the history the grant and the watermark are the stated ones."""
    ring = StagingAllocator(case["total_size"])
    ids: dict[str, int] = {}
    for step in case["steps"]:
        if "assign" in step:
            grant = ring.assign(step["bytes"])
            if isinstance(grant, Oversized):
                assert step["grant"] == "oversized"
            else:
                ids[step["assign"]] = grant.alloc_id
                assert {"offset": grant.offset, "round": grant.round, "end": grant.offset + step["bytes"]} == step["grant"]
        else:
            assert ring.free(ids.get(step["free"], 10**9)) is step["changed"]
        assert list(ring.get_watermark()) == step["watermark"]


@cases("slices")
def test_head_slices(case: dict[str, Any]) -> None:
    """Every decode rank expects the stated writers with the stated heads, at the stated places of its grant."""
    prefill, decode = case["prefill"], case["decode"]
    spec = TensorSpec("k", case["heads"], case["width"], "bf16", case["sharded"])
    model = ModelLayout(((spec,),) * case["layers"])
    source = RankLayout(
        model, 0, prefill["tp_size"], 0, prefill["pp_size"], even_stage_bounds(case["layers"], prefill["pp_size"])
    )
    bounds = even_stage_bounds(case["layers"], decode["pp_size"])
    for rank in case["decode_ranks"]:
        target = RankLayout(model, rank["tp_rank"], decode["tp_size"], rank["pp_rank"], decode["pp_size"], bounds)
        writers = expected_writers(source, target)
        offsets = writer_offsets(writers, case["num_tokens"])
        found = [
            {
                "tp_rank": writer.writer.tp_rank,
                "pp_rank": writer.writer.pp_rank,
                "layers": sorted({part.layer for part in writer.parts}),
                "source_head": writer.parts[0].source_head,
                "destination_head": writer.parts[0].destination_head,
                "head_count": writer.parts[0].head_count,
                "writer_offset": offset,
                "writer_bytes": writer.token_bytes * case["num_tokens"],
            }
            for writer, offset in zip(writers, offsets, strict=True)
        ]
        assert found == rank["writers"]
