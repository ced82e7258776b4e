"""Time to first token and times between tokens, for each request, and for how many requests they were measured."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """When a request was issued and when each token of its answer left the decode engine: seconds of one monotonic clock."""

    room: str
    issued: float
    tokens: tuple[float, ...]

    @property
    def ttft_s(self) -> float | None:
        """Time to first token: from the issue until the decode engine, with the KV in its pages, emits it."""
        return self.tokens[0] - self.issued if self.tokens and self.tokens[0] >= self.issued else None

    @property
    def itl_s(self) -> tuple[float, ...]:
        """Inter-token latencies: empty for an answer of fewer than two tokens."""
        return tuple(later - earlier for earlier, later in pairwise(self.tokens))

    def to_json(self) -> dict[str, object]:
        """In milliseconds."""
        first = self.ttft_s
        gaps = [_milliseconds(gap) for gap in self.itl_s]
        return {"room": self.room, "ttft_ms": None if first is None else _milliseconds(first), "itl_ms": gaps}


@dataclass(frozen=True, slots=True)
class Coverage:
    """Shares of ``total`` requests for which each time was measured."""

    ttft: float
    itl: float


def coverage(times: Iterable[RequestTimes], total: int) -> Coverage:
    """Over ``total`` requests, of which those without ``times`` have none."""
    known = list(times)
    first = sum(request.ttft_s is not None for request in known)
    between = sum(bool(request.itl_s) for request in known)
    return Coverage(first / total, between / total) if total else Coverage(0.0, 0.0)


def latency_json(times: Sequence[RequestTimes], total: int) -> dict[str, object]:
    """Coverage and quantiles of both times."""
    covered = coverage(times, total)
    first = [request.ttft_s for request in times if request.ttft_s is not None]
    between = [gap for request in times for gap in request.itl_s]
    return {
        "ttft": {"coverage": covered.ttft, **_quantiles(first)},
        "itl": {"coverage": covered.itl, **_quantiles(between)},
    }


def _quantiles(seconds: Sequence[float]) -> dict[str, object]:
    ordered = sorted(seconds)
    if not ordered:
        return {"p50_ms": None, "p90_ms": None, "p99_ms": None}
    names = (("p50_ms", 0.50), ("p90_ms", 0.90), ("p99_ms", 0.99))
    return {name: _milliseconds(ordered[min(len(ordered) - 1, int(share * len(ordered)))]) for name, share in names}


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1e3, 3)
