"""Real KV cache through real daemons: every plane, layout and kind of failure that the demo can play."""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner

from lab.__main__ import main
from lab.demo import DemoOptions, demo_shape, demo_workload, run_demo
from lab.report import RunReport


class WatchingView:
    """Shows nothing, and calls ``at`` once when ``done`` requests are over."""

    def __init__(self, done: int = -1, at: Callable[[], None] = lambda: None) -> None:
        self._done = done
        self._at = at
        self.said: list[str] = []

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
        """Keep it."""
        self.said.append(text)


def play(view: WatchingView | None = None, **options: Any) -> RunReport:
    """Run the demo in this process; the daemons are processes of their own."""
    chosen = DemoOptions(**options)
    shape = demo_shape(chosen)
    return run_demo(chosen, shape, demo_workload(chosen, shape), view or WatchingView())


def children(pid: int) -> Iterator[int]:
    """Direct children of a process."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        yield from (int(child) for child in (task / "children").read_text().split())


def kill_daemon(package: str) -> None:
    """SIGKILL the daemon of this process that runs ``package``, as an operator's slip or the kernel would."""
    for child in children(os.getpid()):
        if package in Path(f"/proc/{child}/cmdline").read_text():
            os.kill(child, signal.SIGKILL)
            return
    raise AssertionError(f"no {package} runs")


@pytest.mark.parametrize("plane", ["shm", "zmq"])
def test_every_byte_arrives_through_a_ring_of_many_rounds(plane: str) -> None:
    """Chunks larger than half of the ring, partial pages and one-token requests all arrive, over each plane."""
    report = play(requests=40, plane=plane)
    assert report.succeeded, report.failures
    assert report.bytes_checked == report.bytes_expected > 0
    assert report.ring_rounds > 10
    assert report.plane == plane


@pytest.mark.parametrize(
    ("prefill_tp", "prefill_dp", "decode_tp"),
    [
        pytest.param(4, 4, 8, id="four groups of TP 1 to TP 8"),
        pytest.param(4, 2, 4, id="two groups of TP 2 to TP 4"),
        pytest.param(4, 1, 4, id="equal sizes"),
        pytest.param(4, 1, 1, id="TP 4 to TP 1"),
        pytest.param(16, 1, 2, id="heads replicated on the prefill side"),
        pytest.param(2, 1, 16, id="heads replicated on the decode side"),
    ],
)
def test_unequal_layouts_arrive(prefill_tp: int, prefill_dp: int, decode_tp: int) -> None:
    """Whatever the ratio of the two sides, each decode rank gets exactly its heads."""
    report = play(requests=15, prefill_tp=prefill_tp, prefill_dp=prefill_dp, decode_tp=decode_tp)
    assert report.succeeded, report.failures


def test_a_latent_that_is_not_sharded_arrives_whole() -> None:
    """MLA: one writer sends the whole latent to every decode rank."""
    report = play(requests=6, preset="deepseek-v3", prefill_tp=2, decode_tp=2, chunk_tokens=32)
    assert report.succeeded, report.failures


def test_a_paced_trace_keeps_its_arrival_times(tmp_path: Path) -> None:
    """No request starts before its time, and lengths are scaled, never cut."""
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(f"{json.dumps({'timestamp': 100 * n, 'input_length': 6400})}\n" for n in range(4)))
    report = play(trace=trace, scale=64, pace=True)
    assert report.succeeded, report.failures
    assert report.bytes_checked == 4 * 100 * 2048
    assert report.duration_s >= 0.3


@pytest.mark.parametrize("package", ["decode_service", "prefill_service"])
def test_a_killed_daemon_fails_its_rooms_and_the_rest_goes_on(package: str) -> None:
    """After SIGKILL the daemon is started again on the same address; its rooms fail with a reason; no byte is wrong."""
    view = WatchingView(10, lambda: kill_daemon(package))
    report = play(view, requests=60)
    assert report.restarts == 1
    assert report.requests_completed + report.requests_failed == 60
    assert 0 < report.requests_failed <= 16, "what was in flight, and at most one more each before the death was noticed"
    assert report.mismatches == 0
    assert not report.succeeded
    failed = {failure.room for failure in report.failures}
    assert len(failed) == report.requests_failed
    assert all(failure.code and failure.message for failure in report.failures)
    assert any("was killed by SIGKILL" in text for text in view.said)


def test_a_flipped_byte_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    """Corruption behind the checksum is seen by the comparison, named to the byte, and ends with status 1."""
    with pytest.raises(SystemExit) as ended:
        main(["demo", "--corrupt", "--requests", "5", "--json"], standalone_mode=False)
    assert ended.value.code == 1
    result = json.loads(capsys.readouterr().out)
    assert (result["mismatches"], result["requests"]["completed"], result["requests"]["failed"]) == (1, 5, 0)
    assert "1 wrong bytes; layer" in result["failures"][0]["message"]


def test_the_command_prints_one_object_and_ends_with_status_0(tmp_path: Path) -> None:
    """Stdout is one JSON object, progress goes to stderr, and the picture has a panel for each ring with its grants."""
    plot = tmp_path / "rings.svg"
    result = CliRunner().invoke(main, ["demo", "--requests", "5", "--plot", f"{plot}", "--json"])
    assert result.exit_code == 0
    figures = json.loads(result.stdout)
    assert figures["requests"] == {"total": 5, "completed": 5, "failed": 0}
    assert figures["bytes_checked"] == figures["bytes_expected"]
    assert "requests: 5/5" in result.stderr
    picture = ET.parse(plot).getroot()
    titles = [title.text for title in picture.iter("{http://www.w3.org/2000/svg}text") if title.get("class") == "title"]
    assert len(titles) == 8
    assert len([grant for grant in picture.iter() if grant.get("data-grant")]) >= 8 * 5


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_is_left_whatever_ends_the_run(number: signal.Signals) -> None:
    """Interrupted, terminated or killed in the middle: both daemons are gone."""
    command = [sys.executable, "-m", "lab", "demo", "--requests", "5000"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as demo:
        assert demo.stderr is not None
        assert demo.stderr.readline() == "requests: 5000 to go\n"
        daemons = [os.pidfd_open(child) for child in children(demo.pid)]
        demo.send_signal(number)
        demo.stderr.read()
    try:
        assert len(daemons) == 2
        for daemon in daemons:
            # Readable at the end of its process; a daemon that stays is ended by the suite's time limit, as a failure.
            select.select([daemon], [], [])
    finally:
        for daemon in daemons:
            os.close(daemon)
