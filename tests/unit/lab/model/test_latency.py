"""What counts as measured, and how it is summed up."""

from lab.model.latency import Coverage, RequestTimes, coverage, latency_json


def test_times_of_a_request() -> None:
    """The first token counts from the issue, the others from the token before."""
    times = RequestTimes("a", 10.0, (10.5, 10.75, 11.75))
    assert times.ttft_s == 0.5
    assert times.itl_s == (0.25, 1.0)
    assert times.to_json() == {"room": "a", "ttft_ms": 500.0, "itl_ms": [250.0, 1000.0]}


def test_coverage_is_measured_not_assumed() -> None:
    """A request without tokens has no first one, one with a single token has nothing between, a missing one has neither."""
    times = [RequestTimes("a", 1.0, (2.0, 3.0)), RequestTimes("b", 1.0, (2.0,)), RequestTimes("c", 1.0, ())]
    assert coverage(times, 4) == Coverage(0.5, 0.25)
    assert coverage(times[:1], 1) == Coverage(1.0, 1.0)
    assert coverage([], 0) == Coverage(0.0, 0.0)


def test_quantiles() -> None:
    """Quantiles are of what was measured; without any they are null."""
    times = [RequestTimes(f"{n}", 0.0, (n / 1000, n / 1000 + 0.002)) for n in range(1, 101)]
    value = latency_json(times, 100)
    assert value["ttft"] == {"coverage": 1.0, "p50_ms": 51.0, "p90_ms": 91.0, "p99_ms": 100.0}
    assert latency_json([], 2)["itl"] == {"coverage": 0.0, "p50_ms": None, "p90_ms": None, "p99_ms": None}
