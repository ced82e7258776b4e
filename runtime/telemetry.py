"""What is told of every chunk that has arrived: its stages go into metrics, and into spans where tracing is on."""

from dataclasses import dataclass
from typing import Protocol

from runtime.metrics import STAGES, StageMetrics


@dataclass(frozen=True, slots=True)
class ChunkTiming:
    """One chunk from its first request to its pages. Moments are seconds of the loop's clock; ``None`` was not seen."""

    rank: int
    room: str
    chunk: int
    num_bytes: int
    moments: tuple[float | None, float | None, float | None, float | None, float]
    """Asked, granted, past the gate, written, scattered."""
    traceparent: str | None = None
    peer: str = ""
    """The other side, as the log names it."""

    def stages(self) -> tuple[tuple[str, float, float], ...]:
        """``(stage, began, ended)`` of each stage both of whose ends were seen."""
        ends = zip(STAGES, self.moments, self.moments[1:], strict=False)
        return tuple((name, began, ended) for name, began, ended in ends if began is not None and ended is not None)

    def line(self) -> dict[str, float]:
        """The stages in milliseconds, for the log."""
        return {f"{name}_ms": round((ended - began) * 1e3, 3) for name, began, ended in self.stages()}


class Tracer(Protocol):
    """Where spans go."""

    def chunk(self, timing: ChunkTiming) -> None:
        """Export the spans of one chunk. Never blocks and never raises."""

    def close(self) -> None:
        """Send what is left, for a bounded time."""


class Telemetry:
    """Metrics always, spans if there is a tracer. Loop thread."""

    def __init__(self, tracer: Tracer | None = None, metrics: StageMetrics | None = None) -> None:
        self.metrics = StageMetrics() if metrics is None else metrics
        self._tracer = tracer

    def chunk(self, timing: ChunkTiming) -> None:
        """A chunk has arrived."""
        self.metrics.chunk(timing.rank, timing.num_bytes)
        for stage, began, ended in timing.stages():
            self.metrics.stage(timing.rank, stage, ended - began)
        if self._tracer is not None:
            self._tracer.chunk(timing)

    def close(self) -> None:
        """Send what is left."""
        if self._tracer is not None:
            self._tracer.close()
