"""Requests and answers as bytes."""

import pytest

from runtime.engine_protocol import EngineError, pack, unpack


def test_a_map_survives() -> None:
    """Numbers, texts, bytes, lists and nil come back as they went."""
    body = {"id": 1, "pages": [1, 2], "text": "é", "raw": b"\0", "none": None, "on": True, "s": 0.5}
    assert unpack(pack(body)) == body


@pytest.mark.parametrize("frame", [b"", b"\xc1", b"\x93\x01\x02\x03", b"\x81\x01\x02", b"\x80\x80"])
def test_anything_else_is_malformed(frame: bytes) -> None:
    """What is not exactly one map with text keys is refused."""
    with pytest.raises(EngineError) as caught:
        unpack(frame)
    assert caught.value.code == "malformed"


def test_an_error_travels_whole() -> None:
    """Code, message, field and limit arrive; what was not set is absent."""
    error = EngineError.from_body(unpack(pack(EngineError("busy", "wait", None, 5).to_body())))
    assert (error.code, error.message, error.field, error.limit) == ("busy", "wait", None, 5)
    assert "limit" not in EngineError("invalid", "no", "pages").to_body()
