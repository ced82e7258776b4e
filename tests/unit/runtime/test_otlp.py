"""Spans as any OTLP receiver gets them: decoded here with the official protobuf messages."""

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from runtime.otlp import MAX_QUEUED_SPANS, OtlpTracer
from runtime.telemetry import ChunkTiming

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TIMING = ChunkTiming(3, "r", 7, 4096, (10.0, 10.5, 11.0, 12.0, 12.25), f"00-{TRACE}-{PARENT}-01", "tcp://h:1")


class Receiver:
    """An OTLP/HTTP receiver that answers with ``status``."""

    def __init__(self) -> None:
        self.status = 200
        self.requests: list[ExportTraceServiceRequest] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                """Take one export."""
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                receiver.requests.append(ExportTraceServiceRequest.FromString(body))
                self.send_response(receiver.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as above
                """Say nothing."""

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}/v1/traces"

    def close(self) -> None:
        """Stop."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def spans(self) -> dict[str, Span]:
        """Every span by its name."""
        scopes = [scope for request in self.requests for group in request.resource_spans for scope in group.scope_spans]
        return {span.name: span for scope in scopes for span in scope.spans}


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A running receiver."""
    running = Receiver()
    yield running
    running.close()


def test_a_chunk_is_a_span_with_its_stages(receiver: Receiver) -> None:
    """Request, gate, write and scatter are children of the chunk, which is a child of the engine's span; times add up."""
    dropped: list[int] = []
    tracer = OtlpTracer(receiver.endpoint, "pd-staging-prefill", "p", dropped.append, lambda: 20.0)
    tracer.chunk(TIMING)
    tracer.close()
    spans = receiver.spans()
    assert set(spans) == {"chunk", "request", "gate", "write", "scatter"}
    chunk = spans.pop("chunk")
    assert (chunk.trace_id.hex(), chunk.parent_span_id.hex()) == (TRACE, PARENT)
    assert {span.parent_span_id for span in spans.values()} == {chunk.span_id}
    assert {span.trace_id.hex() for span in spans.values()} == {TRACE}
    lengths = {name: (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9 for name, span in spans.items()}
    assert lengths == {"request": 0.5, "gate": 0.5, "write": 1.0, "scatter": 0.25}
    assert chunk.end_time_unix_nano - chunk.start_time_unix_nano == 2_250_000_000
    attributes = {entry.key: entry.value for entry in chunk.attributes}
    assert attributes["pd_staging.room"].string_value == "r"
    assert (attributes["pd_staging.chunk"].int_value, attributes["pd_staging.bytes"].int_value) == (7, 4096)
    resource = {entry.key: entry.value.string_value for entry in receiver.requests[0].resource_spans[0].resource.attributes}
    assert (resource["service.name"], resource["service.instance.id"]) == ("pd-staging-prefill", "p")
    assert dropped == []


def test_a_trace_of_its_own_without_a_parent(receiver: Receiver) -> None:
    """A room without ``traceparent``, or with one that is none, begins a trace."""
    tracer = OtlpTracer(receiver.endpoint, "s", "i", lambda _: None)
    tracer.chunk(ChunkTiming(0, "r", 0, 1, (1.0, 2.0, 3.0, 4.0, 5.0), "nonsense"))
    tracer.close()
    chunk = receiver.spans()["chunk"]
    assert chunk.parent_span_id == b""
    assert chunk.trace_id.hex() != TRACE


def test_what_cannot_be_sent_is_counted(receiver: Receiver) -> None:
    """A receiver that refuses loses spans, not chunks: their number is known."""
    receiver.status = 400
    dropped: list[int] = []
    tracer = OtlpTracer(receiver.endpoint, "s", "i", dropped.append)
    tracer.chunk(TIMING)
    tracer.close()
    assert sum(dropped) == 5


def test_the_queue_is_bounded(receiver: Receiver) -> None:
    """Beyond it spans are dropped and counted; what fits is sent."""
    dropped: list[int] = []
    tracer = OtlpTracer(receiver.endpoint, "s", "i", dropped.append)
    tracer._queued = MAX_QUEUED_SPANS - 5
    tracer.chunk(TIMING)
    tracer.chunk(TIMING)
    tracer.close()
    assert dropped == [5]
    assert len(receiver.spans()) == 5
