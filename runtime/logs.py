"""Logs of a daemon: one JSON object per line on stderr, or coloured text where stderr is a terminal.

Event names are static and in the past tense (``chunk_completed``); whatever varies is a key. Machines never log: their shells
do.
"""

import logging
import sys
from typing import Final, TextIO

import structlog
from structlog.typing import FilteringBoundLogger, Processor

LEVELS: Final = ("debug", "info", "warning", "error")


def configure_logs(level: str = "info", stream: TextIO | None = None) -> None:
    """Send every log of this process to ``stream`` (default: stderr), from ``level`` upwards. Call once, before any log."""
    target = sys.stderr if stream is None else stream
    processors: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        *_renderers(terminal=target.isatty()),
    ]
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.WriteLoggerFactory(target),
        cache_logger_on_first_use=False,
    )


def logger(**bound: object) -> FilteringBoundLogger:
    """A logger whose every line carries ``bound`` (for example ``service`` and ``rank``)."""
    made: FilteringBoundLogger = structlog.get_logger(**bound)
    return made


def _renderers(*, terminal: bool) -> tuple[Processor, ...]:
    if terminal:
        return (structlog.dev.ConsoleRenderer(),)
    return (structlog.processors.dict_tracebacks, structlog.processors.JSONRenderer(default=_plain))


def _plain(value: object) -> str:
    """What JSON cannot say, as text: a log line is never lost to a value."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
