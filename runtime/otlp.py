"""Spans of every chunk over OTLP/HTTP. Needs the ``otel`` extra; imported by ``runtime/tracing.py`` alone.

    chunk ----------------------------------------------  child of the engine's span, by the room's ``traceparent``
      request ------ gate ---- write --------- scatter -

The loop only makes a span; a thread of the exporter sends it, from a bounded queue. What does not fit there or cannot be sent
is dropped and counted.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from runtime.telemetry import ChunkTiming

MAX_QUEUED_SPANS: Final = 8192
BATCH: Final = 512
SEND_S: Final = 2.0
"""How long one batch may take, and how long the last ones may take at the end."""
SPAN_NAMES: Final = {"requested": "request", "gated": "gate", "written": "write", "scattered": "scatter"}


class _CountingExporter(SpanExporter):
    """Sends batches, and says what became of each."""

    def __init__(self, endpoint: str, left: Callable[[int, bool], None]) -> None:
        self._inner = OTLPSpanExporter(endpoint=endpoint, timeout=SEND_S)
        self._left = left

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send one batch. The exporter's thread."""
        result = self._inner.export(spans)
        self._left(len(spans), result is SpanExportResult.SUCCESS)
        return result

    def shutdown(self) -> None:
        """End the connection."""
        self._inner.shutdown()  # type: ignore[no-untyped-call] # the library left it untyped


class OtlpTracer:
    """Sends the spans of one daemon to ``endpoint``."""

    def __init__(
        self,
        endpoint: str,
        service: str,
        instance: str,
        dropped: Callable[[int], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._dropped = dropped
        self._queued = 0
        self._guard = threading.Lock()
        # Spans carry the wall's time; the loop's clock has another zero.
        self._epoch_ns = time.time_ns() - int(clock() * 1e9)
        resource = Resource.create({"service.name": service, "service.instance.id": instance})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        exporter = _CountingExporter(endpoint, self._left)
        self._provider.add_span_processor(
            BatchSpanProcessor(exporter, MAX_QUEUED_SPANS, schedule_delay_millis=500, max_export_batch_size=BATCH)
        )
        self._tracer = self._provider.get_tracer("pd-staging")
        self._propagator = TraceContextTextMapPropagator()

    def chunk(self, timing: ChunkTiming) -> None:
        """Export one chunk: a span for all of it, and one for each stage."""
        stages = timing.stages()
        if not stages or not self._take_place(len(stages) + 1):
            return
        parent = self._propagator.extract({} if timing.traceparent is None else {"traceparent": timing.traceparent})
        whole = self._tracer.start_span("chunk", parent, start_time=self._at(stages[0][1]))
        whole.set_attribute("pd_staging.room", timing.room)
        whole.set_attribute("pd_staging.chunk", timing.chunk)
        whole.set_attribute("pd_staging.rank", timing.rank)
        whole.set_attribute("pd_staging.peer", timing.peer)
        whole.set_attribute("pd_staging.bytes", timing.num_bytes)
        inside = trace.set_span_in_context(whole, parent)
        for name, began, ended in stages:
            self._tracer.start_span(SPAN_NAMES[name], inside, start_time=self._at(began)).end(self._at(ended))
        whole.end(self._at(timing.moments[-1]))

    def close(self) -> None:
        """Send what is left, for at most ``SEND_S``."""
        self._provider.force_flush(int(SEND_S * 1e3))
        self._provider.shutdown()

    def _take_place(self, number: int) -> bool:
        with self._guard:
            fits = self._queued + number <= MAX_QUEUED_SPANS
            self._queued += number if fits else 0
        if not fits:
            self._dropped(number)
        return fits

    def _left(self, number: int, arrived: bool) -> None:
        with self._guard:
            self._queued -= number
        if not arrived:
            self._dropped(number)

    def _at(self, moment: float) -> int:
        return self._epoch_ns + int(moment * 1e9)
