"""Every chunk's stages reach the metrics, and a tracer where there is one."""

from runtime.telemetry import ChunkTiming, Telemetry


class Recorder:
    """A tracer that keeps what it is given."""

    def __init__(self) -> None:
        self.seen: list[ChunkTiming] = []
        self.closed = False

    def chunk(self, timing: ChunkTiming) -> None:
        """Keep it."""
        self.seen.append(timing)

    def close(self) -> None:
        """Note it."""
        self.closed = True


def sample(telemetry: Telemetry, name: str, **labels: str) -> float | None:
    """One value of the registry."""
    return telemetry.metrics.registry.get_sample_value(f"pd_staging_{name}", labels)


def test_stages_lie_between_two_moments_that_were_seen() -> None:
    """A stage one of whose ends was not seen is left out of all."""
    timing = ChunkTiming(3, "r", 7, 100, (1.0, 1.5, None, 3.0, 3.25))
    assert timing.stages() == (("requested", 1.0, 1.5), ("scattered", 3.0, 3.25))
    assert timing.line() == {"requested_ms": 500.0, "scattered_ms": 250.0}


def test_a_chunk_is_counted_and_traced() -> None:
    """Chunks, bytes, the histogram of each stage, and one call of the tracer, which is closed with the rest."""
    tracer = Recorder()
    telemetry = Telemetry(tracer)
    timing = ChunkTiming(3, "r", 7, 100, (1.0, 1.5, 2.0, 3.0, 3.25))
    telemetry.chunk(timing)
    assert sample(telemetry, "chunks_completed_total", rank="3") == 1
    assert sample(telemetry, "chunk_bytes_total", rank="3") == 100
    assert sample(telemetry, "stage_duration_seconds_sum", rank="3", stage="written") == 1.0
    telemetry.close()
    assert (tracer.seen, tracer.closed) == ([timing], True)


def test_without_a_tracer_nothing_is_missed() -> None:
    """Metrics alone."""
    telemetry = Telemetry()
    telemetry.chunk(ChunkTiming(0, "r", 0, 1, (1.0, 1.0, 1.0, 1.0, 1.0)))
    telemetry.close()
    assert sample(telemetry, "chunks_completed_total", rank="0") == 1
