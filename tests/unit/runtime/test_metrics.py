"""Metrics as Prometheus wants them: named once, with units, bounded, and honest when the loop does not answer."""

from prometheus_client import CollectorRegistry, generate_latest

from runtime.metrics import Families, LoopCollector, Measured, StageMetrics


def describe(families: Families, measured: Measured) -> None:
    """One gauge and one counter per rank."""
    for rank in measured["ranks"]:
        families.gauge("ring_used_bytes", "Bytes of live grants.", rank["used"], rank=str(rank["rank"]))
        families.counter("grants", "Regions granted.", rank["grants"], rank=str(rank["rank"]))


def scraped(measured: Measured | None) -> str:
    """What a scrape would get."""
    registry = CollectorRegistry()
    registry.register(LoopCollector(lambda: measured, describe))
    return generate_latest(registry).decode()


def test_families_are_named_once_and_filled_by_rank() -> None:
    """Counters end in ``_total``, gauges in their unit, and a value that is not known is left out."""
    text = scraped({"ranks": [{"rank": 0, "used": 5, "grants": 7}, {"rank": 1, "used": None, "grants": 8}]})
    assert text.count("# TYPE pd_staging_ring_used_bytes gauge") == 1
    assert 'pd_staging_ring_used_bytes{rank="0"} 5.0' in text
    assert 'pd_staging_ring_used_bytes{rank="1"}' not in text
    assert 'pd_staging_grants_total{rank="1"} 8.0' in text
    assert "pd_staging_loop_responsive 1.0" in text


def test_a_loop_that_does_not_answer_is_a_fact() -> None:
    """The scrape succeeds and says so, and has no stale values."""
    text = scraped(None)
    assert "pd_staging_loop_responsive 0.0" in text
    assert "ring_used_bytes" not in text


def test_registering_asks_nobody() -> None:
    """A collector is registered before the loop runs."""
    asked = []

    def measure() -> Measured | None:
        asked.append(1)
        return None

    CollectorRegistry(auto_describe=True).register(LoopCollector(measure, describe))
    assert asked == []


def test_lost_telemetry_is_counted() -> None:
    """Also while none was lost."""
    metrics = StageMetrics()
    value = metrics.registry.get_sample_value
    assert value("pd_staging_telemetry_dropped_total", {"kind": "span"}) == 0
    metrics.dropped("span", 3)
    assert value("pd_staging_telemetry_dropped_total", {"kind": "span"}) == 3
    assert value("process_open_fds", {}) is not None


def test_each_daemon_of_a_process_has_its_own_registry() -> None:
    """An engine may embed several halves."""
    first, second = StageMetrics(), StageMetrics()
    first.chunk(0, 10)
    assert second.registry.get_sample_value("pd_staging_chunk_bytes_total", {"rank": "0"}) is None
