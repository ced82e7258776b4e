"""What fuzzing has found interesting holds for ever: the kept corpus without the fuzzer."""

import json
from pathlib import Path

import pytest

from tests.fuzz.frames import KINDS, check, to_input

HERE = Path(__file__).parent
CORPUS = sorted((HERE / "corpus").iterdir())
VECTORS = json.loads((HERE.parents[1] / "docs" / "vectors.json").read_text(encoding="utf-8"))
DECODERS = {"to_decode": 0, "to_prefill": 1, "data": 2}


@pytest.mark.parametrize("file", CORPUS, ids=[file.name for file in CORPUS])
def test_kept_inputs_hold(file: Path) -> None:
    """Each kept input is a message that survives its own encoding, or is refused properly."""
    check(file.read_bytes())


def test_the_corpus_starts_from_the_vectors() -> None:
    """Every published vector, valid or not, is an input that holds, so the fuzzer starts from all there is."""
    cases = [*VECTORS["valid"], *VECTORS["invalid"]]
    inputs = [to_input(DECODERS[case["direction"]], [bytes.fromhex(frame) for frame in case["frames"]]) for case in cases]
    for data in inputs:
        check(data)
    kept = {file.read_bytes() for file in CORPUS}
    assert [data for data in inputs if data not in kept and len(data) <= 4096] == []


def test_a_broken_promise_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check fails for a decoder that raises something else, so a quiet fuzzer means something."""

    def broken(_frames: list[bytes]) -> object:
        raise IndexError

    monkeypatch.setattr("tests.fuzz.frames._DECODERS", (broken, broken, broken))
    with pytest.raises(IndexError):
        check(bytes((0, KINDS.index(b"HEARTBEAT"))))
