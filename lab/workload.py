"""Which requests a run plays: sizes, prefill groups and arrival times, all from one seed or from a trace.

The synthetic workload is shaped to hurt: one-token requests, last pages and last chunks that are partly filled, exact
multiples and their neighbours, prefixes that start in the middle of a page on either side, and full chunks which, in the
default ring of one and a half chunks, are larger than half of it, so that almost every grant begins a new round.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from lab.trace import TraceRequest

RING_CHUNKS = 1.5
"""Size of the default ring in full chunks: small enough that a full chunk is larger than half of it."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request: its tokens go from one prefill group to every decode rank."""

    index: int
    room: str
    num_tokens: int
    group: int
    arrival_s: float = 0.0
    """Seconds after the start of the run; obeyed only when a run is paced."""
    source_first_token: int = 0
    """Where the request's tokens begin within its first prefill page: what a cached prefix leaves behind."""
    destination_first_token: int = 0
    """The same within its first decode page."""


@dataclass(frozen=True, slots=True)
class Grid:
    """The sizes that a workload plays against, in tokens."""

    chunk_tokens: int
    prefill_page_size: int
    decode_page_size: int


def synthetic_workload(count: int, groups: int, grid: Grid, seed: int) -> tuple[Request, ...]:
    """``count`` requests over ``groups`` prefill groups in turn; the same arguments give the same requests."""
    random = Random(seed)
    sizes = _sizes(count, grid, random)
    return tuple(
        Request(
            index,
            f"request-{index:06d}",
            num_tokens,
            index % groups,
            source_first_token=_offset(grid.prefill_page_size, random),
            destination_first_token=_offset(grid.decode_page_size, random),
        )
        for index, num_tokens in enumerate(sizes)
    )


def trace_workload(trace: Sequence[TraceRequest], groups: int) -> tuple[Request, ...]:
    """The requests of a trace, over ``groups`` prefill groups in turn."""
    return tuple(
        Request(index, f"request-{index:06d}", request.num_tokens, index % groups, request.arrival_s)
        for index, request in enumerate(trace)
    )


def _sizes(count: int, grid: Grid, random: Random) -> list[int]:
    """Every edge size once per cycle, between sizes drawn at random, in an order drawn at random."""
    chunk = grid.chunk_tokens
    pages = (grid.prefill_page_size, grid.decode_page_size)
    edges = [1, 1, chunk - 1, chunk, chunk + 1, 2 * chunk, 3 * chunk - 1]
    edges += [size + step for size in pages for step in (-1, 0, 1)]
    sizes: list[int] = []
    while len(sizes) < count:
        cycle = [max(1, size) for size in edges] + [random.randint(1, 3 * chunk) for _ in edges]
        random.shuffle(cycle)
        sizes.extend(cycle)
    return sizes[:count]


def _offset(page_size: int, random: Random) -> int:
    return random.choice((0, random.randrange(page_size)))
