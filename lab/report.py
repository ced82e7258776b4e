"""What a run has shown: one JSON object for programs, one short table for people."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

from rich.console import Console
from rich.table import Table

from lab.model.speech import SpeechReport

MAX_LISTED_FAILURES = 20
"""How many failures the table lists; the JSON object lists all."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One room that did not complete on one rank. ``rank`` reads ``prefill 2`` or ``decode 5``; ``code`` is static."""

    room: str
    rank: str
    code: str
    message: str


@dataclass(slots=True)
class RunReport:
    """The outcome of one demo run. Bytes are KV bytes on decode ranks."""

    plane: str
    requests_total: int
    bytes_expected: int
    ring_bytes: int
    requests_completed: int = 0
    requests_failed: int = 0
    mismatches: int = 0
    """Decode-rank copies of a request that differ from what the prefill pools hold."""
    bytes_checked: int = 0
    ring_rounds: int = 0
    """Highest round that the watermark of any decode rank has reached."""
    duration_s: float = 0.0
    restarts: int = 0
    """Daemons that died and were started again."""
    failures: list[Failure] = field(default_factory=list)
    speech: SpeechReport | None = None
    """What the model said; ``None`` where simulated engines played."""

    @property
    def succeeded(self) -> bool:
        """Whether every request completed, every byte was compared and right, and every token was as it must be."""
        return (
            self.requests_completed == self.requests_total
            and self.mismatches == 0
            and self.bytes_checked == self.bytes_expected
            and (self.speech is None or self.speech.all_equal(self.requests_total))
        )

    @property
    def bytes_per_s(self) -> float:
        """KV bytes that arrived and were checked, over the whole run."""
        return self.bytes_checked / self.duration_s if self.duration_s > 0 else 0.0

    def to_json(self) -> dict[str, object]:
        """The JSON object, with nested keys in the order in which people ask for them."""
        return {
            "succeeded": self.succeeded,
            "requests": {
                "total": self.requests_total,
                "completed": self.requests_completed,
                "failed": self.requests_failed,
            },
            "mismatches": self.mismatches,
            "bytes_checked": self.bytes_checked,
            "bytes_expected": self.bytes_expected,
            "ring": {"rounds": self.ring_rounds, "bytes": self.ring_bytes},
            "duration_s": round(self.duration_s, 3),
            "throughput": {
                "bytes_per_s": round(self.bytes_per_s),
                "requests_per_s": round(self.requests_completed / self.duration_s, 2) if self.duration_s > 0 else 0.0,
            },
            "plane": self.plane,
            "daemon_restarts": self.restarts,
            "failures": [asdict(failure) for failure in self.failures],
            **({} if self.speech is None else self.speech.to_json(self.requests_total)),
        }


def print_json(value: dict[str, object]) -> None:
    """Write one JSON object to stdout."""
    print(json.dumps(value, indent=2))


def print_run(report: RunReport, console: Console) -> None:
    """Show the table of one run, its first failures, and the verdict in one sentence."""
    table = Table(title="pd-staging demo", show_header=False)
    table.add_column("figure")
    table.add_column("value", justify="right")
    for name, value in _rows(report):
        table.add_row(name, value)
    console.print(table)
    print_failures(report.failures, console)
    console.print(_verdict(report), markup=False, highlight=False, soft_wrap=True)


def print_failures(failures: list[Failure], console: Console) -> None:
    """List the first failures, one line each, and say how many more there are."""
    for failure in failures[:MAX_LISTED_FAILURES]:
        line = f"{failure.room} failed on {failure.rank}: {failure.code}: {failure.message}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if len(failures) > MAX_LISTED_FAILURES:
        console.print(f"... and {len(failures) - MAX_LISTED_FAILURES} more", markup=False)


def _rows(report: RunReport) -> Iterable[tuple[str, str]]:
    yield "requests", f"{report.requests_total}"
    yield "completed", f"{report.requests_completed}"
    yield "failed", f"{report.requests_failed}"
    yield "copies that differ", f"{report.mismatches}"
    yield "KV bytes checked", f"{report.bytes_checked:,} of {report.bytes_expected:,}"
    yield "ring", f"{report.ring_bytes:,} bytes, {report.ring_rounds:,} rounds"
    yield "plane", report.plane
    yield "duration", f"{report.duration_s:.1f} s"
    yield "throughput", f"{report.bytes_per_s / 1e6:.1f} MB/s"
    if report.speech is not None:
        yield "answers equal", f"{report.speech.equal} of {report.speech.compared}, {report.speech.tokens} tokens"
    if report.restarts:
        yield "daemons restarted", f"{report.restarts}"


def _verdict(report: RunReport) -> str:
    if report.succeeded:
        return "Every request completed and every KV byte on every decode rank is right."
    if report.mismatches:
        return f"WRONG BYTES: {report.mismatches} copies on decode ranks differ from what the prefill pools hold."
    if report.requests_completed < report.requests_total:
        return f"Not every request completed: {report.requests_failed} of {report.requests_total} failed."
    if report.speech is not None and report.speech.unequal:
        return f"WRONG TOKENS: {len(report.speech.unequal)} answers; the first: {report.speech.unequal[0]}"
    return f"Not every byte was compared: {report.bytes_checked} of {report.bytes_expected}."
