"""How much of the transfers' time the prefill engine spent computing what comes next.

Chunked prefill hands a chunk over as soon as it is computed and goes on with the next one of the same prompt. For each chunk,
its transfer lasts from the first ``STAGING_REQ`` of any rank until the last rank has heard that it is scattered; the prefill
daemon logs that (``chunk_completed``, on level debug). The *overlap ratio* is, over all chunks of all prompts,::

    time in which a chunk travelled while a later chunk of its own prompt was being computed / time in which it travelled

0 means that nothing is hidden behind computation: every transfer would be waited for. The last chunk of each prompt has nothing
after it, so prompts of one chunk count as not hidden at all and 1 is out of reach.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

Interval = tuple[float, float]
"""Begin and end, Unix seconds."""

_STAGES = ("requested_ms", "gated_ms", "written_ms", "scattered_ms")


@dataclass(frozen=True, slots=True)
class Overlap:
    """Seconds in which chunks travelled, and how many of them were hidden behind computation."""

    transfer_s: float
    hidden_s: float

    @property
    def ratio(self) -> float:
        """The overlap ratio."""
        return self.hidden_s / self.transfer_s if self.transfer_s > 0 else 0.0

    def to_json(self) -> dict[str, object]:
        """The ratio's two parts and what it means."""
        return {
            "transfer_s": round(self.transfer_s, 6),
            "hidden_s": round(self.hidden_s, 6),
            "meaning": "share of the time in which chunks travelled while a later chunk of the same prompt was being computed",
        }


def measure_overlap(computed: Mapping[str, Sequence[Interval]], log: Path) -> Overlap:
    """Compare when each room's chunks were computed with when the prefill daemon's ``log`` says that they travelled."""
    transfers = _transfers(log)
    total, hidden = 0.0, 0.0
    for room, chunks in computed.items():
        for index in range(len(chunks)):
            travelled = transfers.get((room, index))
            if travelled is not None:
                total += travelled[1] - travelled[0]
                hidden += sum(_common(travelled, later) for later in chunks[index + 1 :])
    return Overlap(total, hidden)


def _transfers(log: Path) -> dict[tuple[str, int], Interval]:
    """By room and chunk, over all ranks of both sides."""
    found: dict[tuple[str, int], Interval] = {}
    for room, chunk, (begin, end) in _completed(log):
        known = found.get((room, chunk), (begin, end))
        found[room, chunk] = (min(known[0], begin), max(known[1], end))
    return found


def _completed(log: Path) -> Iterator[tuple[str, int, Interval]]:
    with log.open(encoding="utf-8") as lines:
        for line in _json_lines(lines):
            if line.get("event") == "chunk_completed":
                end = datetime.fromisoformat(str(line["timestamp"])).timestamp()
                took = sum(float(str(line[stage] or 0)) for stage in _STAGES)
                yield str(line["room"]), int(str(line["chunk"])), (end - took / 1e3, end)


def _json_lines(lines: Iterable[str]) -> Iterator[dict[str, object]]:
    """Those lines that are JSON objects: an interpreter may write others."""
    for line in lines:
        if line.startswith("{"):
            try:
                yield json.loads(line)
            except ValueError:
                continue


def _common(one: Interval, other: Interval) -> float:
    return max(0.0, min(one[1], other[1]) - max(one[0], other[0]))
