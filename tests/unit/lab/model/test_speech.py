"""Answers are counted and compared."""

from lab.model.latency import RequestTimes
from lab.model.speech import SpeechReport


def test_every_answer_must_be_compared_and_equal() -> None:
    """A missing comparison and an unequal answer both spoil the run; the unequal one is named with both answers."""
    report = SpeechReport()
    report.judge("a", (1, 2), (1, 2))
    assert report.all_equal(1)
    assert not report.all_equal(2)
    report.judge("b", (1, 3), (1, 2))
    assert not report.all_equal(2)
    assert report.tokens_json() == {
        "requests_compared": 2,
        "requests_equal": 1,
        "tokens_compared": 4,
        "unequal": ["b: expected [1, 2], got [1, 3]"],
    }


def test_the_object_has_tokens_and_both_times() -> None:
    """Coverage is over the requests of the run, not over those that were measured."""
    report = SpeechReport(times=[RequestTimes("a", 0.0, (1.0, 2.0))])
    value = report.to_json(2)
    assert list(value) == ["tokens", "ttft", "itl"]
    assert value["ttft"] == {"coverage": 0.5, "p50_ms": 1000.0, "p90_ms": 1000.0, "p99_ms": 1000.0}
