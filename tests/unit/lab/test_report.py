"""The verdict of a run follows from its figures, and the JSON object carries them."""

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from lab.report import MAX_LISTED_FAILURES, Failure, RunReport, print_json, print_run

GOOD = RunReport(
    plane="shm",
    requests_total=3,
    bytes_expected=300,
    ring_bytes=64,
    requests_completed=3,
    bytes_checked=300,
    ring_rounds=9,
    duration_s=2.0,
)


def shown(report: RunReport) -> str:
    """What a person sees."""
    text = io.StringIO()
    print_run(report, Console(file=text, width=100))
    return text.getvalue()


def test_a_good_run_succeeds_and_says_so() -> None:
    """Everything completed and compared is a success, in the object and in the table's last line."""
    assert GOOD.succeeded
    assert GOOD.to_json()["requests"] == {"total": 3, "completed": 3, "failed": 0}
    assert GOOD.to_json()["ring"] == {"rounds": 9, "bytes": 64}
    assert GOOD.to_json()["throughput"] == {"bytes_per_s": 150, "requests_per_s": 1.5}
    assert shown(GOOD).endswith("every KV byte on every decode rank is right.\n")


@pytest.mark.parametrize(
    ("worse", "said"),
    [
        (replace(GOOD, mismatches=1), "WRONG BYTES: 1 copies"),
        (replace(GOOD, requests_completed=2, requests_failed=1), "1 of 3 failed"),
        (replace(GOOD, bytes_checked=299), "Not every byte"),
    ],
)
def test_anything_less_does_not(worse: RunReport, said: str) -> None:
    """A wrong byte, a failed request and a byte that was not compared each spoil the run."""
    assert not worse.succeeded
    assert said in shown(worse)


def test_failures_are_all_in_the_object_and_the_first_in_the_table() -> None:
    """Each failure names room, rank, code and message; a long list is cut for people only."""
    failures = [Failure(f"room-{n}", "decode 3", "peer_lost", "why [not]") for n in range(MAX_LISTED_FAILURES + 2)]
    report = replace(GOOD, requests_failed=1, failures=failures)
    listed = report.to_json()["failures"]
    assert isinstance(listed, list)
    assert len(listed) == len(failures)
    assert listed[0] == {"room": "room-0", "rank": "decode 3", "code": "peer_lost", "message": "why [not]"}
    text = shown(report)
    assert "room-0 failed on decode 3: peer_lost: why [not]" in text
    assert "... and 2 more" in text


def test_json_is_one_object_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    """A program can read all of stdout as one object."""
    print_json(GOOD.to_json())
    assert json.loads(capsys.readouterr().out) == GOOD.to_json()
