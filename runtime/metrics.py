"""Prometheus metrics of a daemon, in a registry of its own, so that an engine which embeds it can have its own as well.

Names begin with ``pd_staging_``, end with their unit, and have ``_total`` only where they count. Labels are bounded: ranks,
static words, and at most ``MAX_LABELLED_PEERS`` peers of a rank. Rooms and sessions are never labels; ``explain`` has them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, GCCollector, Histogram, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

PREFIX: Final = "pd_staging_"
MAX_LABELLED_PEERS: Final = 128
BUCKETS_S: Final = (
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    120.0,
    300.0,
)
STAGES: Final = ("requested", "gated", "written", "scattered")

Measured = Mapping[str, Any]
"""What the loop says of every rank, as plain values."""


class Families:
    """Metric families under construction: each named once, filled rank by rank."""

    def __init__(self) -> None:
        self._families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}

    def gauge(self, name: str, help: str, value: float | None, **labels: str) -> None:  # noqa: A002 - prometheus' word
        """One value of a gauge; ``None`` leaves it out."""
        self._add(GaugeMetricFamily, name, help, value, labels)

    def counter(self, name: str, help: str, value: float | None, **labels: str) -> None:  # noqa: A002 - as above
        """One value of a counter, named without ``_total``."""
        self._add(CounterMetricFamily, name, help, value, labels)

    def __iter__(self) -> Iterator[Metric]:
        return iter(self._families.values())

    def _add(
        self,
        kind: type[GaugeMetricFamily] | type[CounterMetricFamily],
        name: str,
        help: str,  # noqa: A002 - as above
        value: float | None,
        labels: Mapping[str, str],
    ) -> None:
        if value is None:
            return
        family = self._families.get(name)
        if family is None:
            family = self._families[name] = kind(PREFIX + name, help, labels=list(labels))
        family.add_metric(list(labels.values()), value)


class LoopCollector(Collector):
    """Asks the loop at every scrape. A loop that does not answer is itself a fact: ``loop_responsive 0``, and nothing else."""

    def __init__(self, measure: Callable[[], Measured | None], describe: Callable[[Families, Measured], None]) -> None:
        self._measure = measure
        self._describe = describe

    def describe(self) -> Iterable[Metric]:
        """Nothing, so that registering it asks nobody."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Every family, freshly measured."""
        measured = self._measure()
        families = Families()
        families.gauge("loop_responsive", "Whether the daemon's loop answered this scrape.", float(measured is not None))
        if measured is not None:
            self._describe(families, measured)
        return tuple(families)


class StageMetrics:
    """What happens once per chunk, noted as it happens."""

    def __init__(self) -> None:
        self.registry: Final = CollectorRegistry()
        self._stages = Histogram(
            f"{PREFIX}stage_duration_seconds",
            "How long a chunk took from request to grant, grant to gate, gate to bytes, bytes to pages.",
            ("rank", "stage"),
            buckets=BUCKETS_S,
            registry=self.registry,
        )
        self._bytes = Counter(f"{PREFIX}chunk_bytes", "Bytes of chunks that arrived.", ("rank",), registry=self.registry)
        self._chunks = Counter(f"{PREFIX}chunks_completed", "Chunks that arrived.", ("rank",), registry=self.registry)
        self._dropped = Counter(
            f"{PREFIX}telemetry_dropped", "Spans and log lines that were lost.", ("kind",), registry=self.registry
        )
        self._dropped.labels(kind="span")
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)

    def stage(self, rank: int, stage: str, seconds: float) -> None:
        """One stage of one chunk is over."""
        self._stages.labels(rank=str(rank), stage=stage).observe(seconds)

    def chunk(self, rank: int, num_bytes: int) -> None:
        """One chunk has arrived."""
        self._chunks.labels(rank=str(rank)).inc()
        self._bytes.labels(rank=str(rank)).inc(num_bytes)

    def dropped(self, kind: str, number: int) -> None:
        """Some telemetry is lost."""
        self._dropped.labels(kind=kind).inc(number)
