"""Opens the way for spans, where tracing was asked for and the ``otel`` extra is installed."""

from collections.abc import Callable

from runtime.errors import StartError
from runtime.telemetry import Tracer


def open_tracer(endpoint: str, service: str, instance: str, dropped: Callable[[int], None]) -> Tracer | None:
    """Spans go to ``endpoint``, an OTLP/HTTP address of traces; ``None`` if it is empty.

    Raises ``StartError`` without the extra.

    ``dropped`` is told, in any thread, how many spans were lost.
    """
    if not endpoint:
        return None
    try:
        from runtime.otlp import OtlpTracer  # noqa: PLC0415 - only with the extra
    except ModuleNotFoundError as error:
        advice = "install pd-staging[otel], or leave otlp_endpoint empty"
        raise StartError(f"send spans to {endpoint}", f"{error.name} is not installed", advice) from error
    return OtlpTracer(endpoint, service, instance, dropped)
