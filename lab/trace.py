"""Read a request trace in the Mooncake format: JSON lines with ``timestamp`` (ms) and ``input_length`` (tokens).

Other fields of a line (``output_length``, ``hash_ids``) are ignored. The first line that is wrong ends the reading with its
line number, the field, what was expected and what was found: a trace that is silently repaired proves nothing.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from protocol.limits import MAX_ROOM_TOKENS


class TraceError(ValueError):
    """A line that is not a request. ``line`` counts from 1; ``field`` is ``""`` where the line as a whole is wrong."""

    def __init__(self, path: Path, line: int, field: str, expected: str, found: str) -> None:
        where = f"{path}, line {line}" + (f", field {field!r}" if field else "")
        super().__init__(f"{where}: expected {expected}, found {found}")
        self.line = line
        self.field = field
        self.expected = expected


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of a trace: when it arrives, in seconds after the first, and how many tokens its prompt has."""

    arrival_s: float
    num_tokens: int


def scaled_tokens(input_length: int, scale: int) -> int:
    """``ceil(input_length / scale)``, at least one token; nothing is cut off."""
    return max(1, -(-input_length // scale))


def read_trace(path: Path, scale: int = 1, limit: int | None = None) -> tuple[TraceRequest, ...]:
    """Read the first ``limit`` requests (all without it), their lengths divided by ``scale``.

    Raises ``TraceError`` for a line that is no request and for a trace with fewer than ``limit`` of them, ``OSError`` for a
    file that cannot be read.
    """
    requests: list[TraceRequest] = []
    first_ms: float | None = None
    last_line = 0
    for line, text in _numbered_lines(path):
        if limit is not None and len(requests) == limit:
            break
        last_line = line
        timestamp_ms, input_length = _parse(path, line, text)
        first_ms = timestamp_ms if first_ms is None else first_ms
        requests.append(TraceRequest(max(0.0, timestamp_ms - first_ms) / 1000.0, scaled_tokens(input_length, scale)))
    if not requests or (limit is not None and len(requests) < limit):
        raise TraceError(path, last_line + 1, "", f"{limit or 'at least one'} request(s)", f"the end after {len(requests)}")
    return tuple(requests)


def _numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines that are not blank, with their numbers."""
    with path.open("rb") as file:
        for line, raw in enumerate(file, start=1):
            try:
                text = raw.decode("utf-8")
            except UnicodeDecodeError as error:
                raise TraceError(path, line, "", "UTF-8 text", f"byte {error.start} that is not") from error
            if text.strip():
                yield line, text


def _parse(path: Path, line: int, text: str) -> tuple[float, int]:
    """``timestamp`` in milliseconds and ``input_length`` in tokens of one line."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TraceError(path, line, "", "one JSON object", f"text that is not JSON ({error})") from error
    if not isinstance(record, dict):
        raise TraceError(path, line, "", "one JSON object", _described(record))
    expected = "a number of milliseconds, not negative"
    timestamp_ms = _field(path, line, record, "timestamp", expected)
    if isinstance(timestamp_ms, bool) or not isinstance(timestamp_ms, int | float) or not 0 <= timestamp_ms < 1e15:
        raise TraceError(path, line, "timestamp", expected, _described(timestamp_ms))
    expected = f"a whole number of tokens from 0 to {MAX_ROOM_TOKENS}"
    input_length = _field(path, line, record, "input_length", expected)
    if isinstance(input_length, bool) or not isinstance(input_length, int) or not 0 <= input_length <= MAX_ROOM_TOKENS:
        raise TraceError(path, line, "input_length", expected, _described(input_length))
    return float(timestamp_ms), input_length


def _field(path: Path, line: int, record: dict[str, object], field: str, expected: str) -> object:
    if field not in record:
        raise TraceError(path, line, field, expected, "no such field")
    return record[field]


def _described(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
