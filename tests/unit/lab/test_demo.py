"""What the demo's options mean, before anything is started; tests/integration runs it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from lab.__main__ import main
from lab.demo import DEFAULT_REQUESTS, DemoOptions, demo_shape, demo_workload
from lab.shape import ShapeError
from lab.trace import TraceError


def test_the_defaults_need_no_file_and_squeeze_through_a_small_ring() -> None:
    """Four prefill ranks feed eight decode ranks through rings in which a full chunk is larger than half."""
    options = DemoOptions()
    shape = demo_shape(options)
    assert (shape.prefill_ranks, shape.prefill_groups, shape.decode_ranks, shape.plane) == (4, 1, 8, "shm")
    assert shape.chunk_bytes(shape.chunk_tokens) < shape.ring_bytes < 2 * shape.chunk_bytes(shape.chunk_tokens)
    assert shape.prefill_page_size != shape.decode_page_size
    assert len(demo_workload(options, shape)) == DEFAULT_REQUESTS


def test_options_shape_the_deployment() -> None:
    """Ranks, groups, plane, preset, chunk and ring sizes arrive where they belong."""
    options = DemoOptions(
        prefill_tp=4, prefill_dp=4, decode_tp=2, plane="zmq", preset="qwen3-8b", chunk_tokens=32, ring_bytes=1 << 25
    )
    shape = demo_shape(options)
    assert (shape.group_size, shape.decode_ranks, shape.plane) == (1, 2, "zmq")
    assert (shape.chunk_tokens, shape.ring_bytes, len(shape.model.layers)) == (32, 1 << 25, 36)


def test_a_trace_is_scaled_and_limited(tmp_path: Path) -> None:
    """Requests of a trace are divided by the scale; without a count the whole trace is played."""
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(f"{json.dumps({'timestamp': 1000 * n, 'input_length': 100 + n})}\n" for n in range(5)))
    options = DemoOptions(trace=trace, scale=50)
    shape = demo_shape(options)
    assert [request.num_tokens for request in demo_workload(options, shape)] == [2, 3, 3, 3, 3]
    assert [request.arrival_s for request in demo_workload(replace(options, requests=2), shape)] == [0.0, 1.0]
    with pytest.raises(TraceError):
        demo_workload(replace(options, requests=6), shape)


def test_the_model_brings_its_own_layout() -> None:
    """With the model as engine the KV is the model's, of the attention that was chosen, and must fit the ranks."""
    gqa = demo_shape(DemoOptions(engine="model"))
    mla = demo_shape(DemoOptions(engine="model", attention="mla", prefill_tp=2))
    assert [spec.name for spec in gqa.model.layers[0]] == ["k", "v"]
    assert [spec.name for spec in mla.model.layers[0]] == ["latent"]
    with pytest.raises(ShapeError, match="decode: the model's 16 heads cannot be shared out over 32 ranks"):
        demo_shape(DemoOptions(engine="model", decode_tp=32))


def test_a_deployment_that_cannot_be_is_refused() -> None:
    """A ring below one chunk is named before a daemon would have to."""
    with pytest.raises(ShapeError, match="smaller than one chunk"):
        demo_shape(DemoOptions(ring_bytes=100))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--plane", "pigeon"], "'pigeon' is not one of"),
        (["--requests", "0"], "0 is not in the range"),
        (["--prefill-tp", "3"], "prefill"),
        (["--prefill-dp", "3"], "4 prefill ranks cannot form 3 groups"),
        (["--ring-bytes", "100"], "smaller than one chunk"),
        (["--trace", "/nonexistent/trace.jsonl"], "No such file"),
        (["--no-such-option"], "No such option"),
    ],
)
def test_options_that_cannot_be_used_end_with_status_2(arguments: list[str], said: str) -> None:
    """Wrong use is told apart from a failed run, and says what was wrong."""
    result = CliRunner().invoke(main, ["demo", *arguments])
    assert result.exit_code == 2
    assert said in result.output


def test_a_wrong_trace_line_ends_with_status_2_and_its_place(tmp_path: Path) -> None:
    """The line, the field and the expectation reach the user; nothing was started."""
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 5}\n{"timestamp": 7}\n')
    result = CliRunner().invoke(main, ["demo", "--trace", str(trace)])
    assert result.exit_code == 2
    assert "line 2, field 'input_length': expected a whole number of tokens" in " ".join(result.output.split())
