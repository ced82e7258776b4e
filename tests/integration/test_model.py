"""The model speaks through real daemons, with prefill and decode in processes of their own."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest
from click.testing import CliRunner

from lab.__main__ import main
from lab.demo import DemoOptions, demo_shape, demo_workload, run_demo
from lab.model.run import ModelOptions, ModelReport, model_shape, run_model
from lab.process import DaemonDied
from lab.report import RunReport


class QuietView:
    """Shows nothing; calls ``at`` once when ``done`` requests are over."""

    def __init__(self, done: int = -1, at: Callable[[], None] = lambda: None) -> None:
        self._done = done
        self._at = at

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        return None

    def phase(self, title: str, total: int) -> None:
        """Nothing to show."""

    def advance(self, done: int, note: str = "") -> None:  # noqa: ARG002 - the interface of a view
        """Act at the right moment."""
        if done == self._done:
            self._at()

    def say(self, text: str) -> None:
        """Nothing to show."""


def speak(options: ModelOptions) -> ModelReport:
    """Run ``lab model`` in this process; engines and daemons are processes of their own."""
    return run_model(options, model_shape(options), QuietView())


def demonstrate(view: QuietView, options: DemoOptions) -> RunReport:
    """Run ``lab demo --engine model``."""
    shape = demo_shape(options)
    return run_demo(options, shape, demo_workload(options, shape), view)


def kill_child(module: str) -> None:
    """SIGKILL the process of this one that runs ``module``."""
    for task in Path("/proc/self/task").iterdir():
        for child in (task / "children").read_text().split():
            if module in Path(f"/proc/{child}/cmdline").read_text():
                os.kill(int(child), signal.SIGKILL)
                return
    raise AssertionError(f"no {module} runs")


@pytest.mark.parametrize(
    ("attention", "plane", "ranks"),
    [
        pytest.param("gqa", "shm", (4, 2, 8), id="two groups of TP 2 to TP 8"),
        pytest.param("gqa", "zmq", (4, 1, 2), id="TP 4 to TP 2"),
        pytest.param("gqa", "shm", (2, 1, 16), id="heads replicated on the decode side"),
        pytest.param("gqa", "shm", (16, 1, 4), id="heads replicated on the prefill side"),
        pytest.param("mla", "shm", (2, 1, 4), id="latent, TP 2 to TP 4"),
        pytest.param("mla", "zmq", (2, 2, 2), id="latent, two groups of TP 1 to TP 2"),
    ],
)
def test_tokens_are_those_of_one_process(attention: str, plane: str, ranks: tuple[int, int, int]) -> None:
    """Every token and every KV byte is what one process has that does both; both times were measured for every prompt."""
    options = ModelOptions(24, attention, *ranks, plane, chunk_tokens=32)
    report = speak(options)
    assert report.run.succeeded, (report.run.failures, report.run.speech)
    value = json.loads(json.dumps(report.to_json()))
    assert value["tokens"]["requests_equal"] == value["tokens"]["requests_compared"] == len(value["per_request"]) == 24
    assert value["ttft"]["coverage"] == value["itl"]["coverage"] == 1.0
    assert value["bytes_checked"] == value["bytes_expected"] > 0


def test_transfer_overlaps_with_computation() -> None:
    """Some of the time in which chunks travel passes while the engine computes the next ones."""
    result = CliRunner().invoke(main, ["model", "--requests", "40", "--json"])
    assert result.exit_code == 0, result.output
    value = json.loads(result.stdout)
    assert 0 < value["overlap_ratio"] < 1
    assert value["overlap"]["hidden_s"] > 0


def test_a_flipped_byte_is_found() -> None:
    """A byte that is wrong behind the checksum is named by the KV digest of its rank, whatever the tokens say."""
    report = demonstrate(QuietView(), DemoOptions(requests=6, engine="model", corrupt=True))
    assert not report.succeeded
    assert report.requests_completed == 6
    assert [(failure.rank, failure.code) for failure in report.failures] == [("decode 0", "mismatch")]


@pytest.mark.parametrize("module", ["decode_service", "prefill_service"])
def test_a_killed_daemon_fails_its_prompts_and_the_rest_is_answered(module: str) -> None:
    """The engines go on with the daemon's next life; what completes is right, what fails has a reason."""
    view = QuietView(10, lambda: kill_child(module))
    report = demonstrate(view, DemoOptions(requests=50, engine="model"))
    assert report.restarts == 1
    assert report.requests_completed + report.requests_failed == 50
    # None, if all that was under way was being computed.
    assert report.requests_failed <= 8, "only what was in flight"
    assert report.speech is not None
    assert report.speech.all_equal(report.requests_completed)
    assert report.mismatches == 0
    assert all(failure.code and failure.message for failure in report.failures)


def test_a_killed_engine_ends_the_run_with_its_log() -> None:
    """An engine cannot be replaced in the middle of its sentences: the run says which one ended and how."""
    view = QuietView(3, lambda: kill_child("lab.model.decode_process"))
    with pytest.raises(DaemonDied, match="model-decode was killed by SIGKILL"):
        demonstrate(view, DemoOptions(requests=40, engine="model"))


def test_a_model_that_cannot_be_split_is_refused() -> None:
    """The count that does not divide is named, with status 2, before anything starts."""
    result = CliRunner().invoke(main, ["model", "--prefill-tp", "32", "--prefill-dp", "1", "--decode-tp", "32"])
    assert result.exit_code == 2
    assert "16 heads cannot be shared out over 32 ranks" in " ".join(result.output.split())
