"""``lab bench``: what the pieces cost on this machine, now.

Numbers are medians of several rounds. They compare within one run only, so every throughput stands beside a plain copy of as
many bytes in pieces of the same size, made in the same run.
"""

import asyncio
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from rich.console import Console
from rich.table import Table

from decode_service.allocator import Oversized, StagingAllocator
from lab.engines import SimulatedEngines
from lab.pair import DaemonPair
from lab.pools import PoolSet, pool_sizes
from lab.presets import PRESETS
from lab.progress import ProgressView
from lab.report import RunReport
from lab.shape import PairShape
from lab.workload import Request
from lab.workspace import Workspace

PLANES = ("shm", "zmq")
LIVE_GRANTS = (1, 1_000, 100_000)
PAIRS = 20_000


@dataclass(frozen=True, slots=True)
class BenchSize:
    """How much is measured. ``requests`` move at once in each of ``rounds`` rounds."""

    rounds: int
    requests: int
    tokens: int
    chunk_tokens: int
    preset: str = "qwen3-8b"


SHORT = BenchSize(rounds=5, requests=4, tokens=512, chunk_tokens=128)
LONG = BenchSize(rounds=15, requests=8, tokens=2048, chunk_tokens=256)


@dataclass(frozen=True, slots=True)
class AllocatorCost:
    """One assign and one free while ``live_grants`` are live."""

    live_grants: int
    pair_ns: float


@dataclass(frozen=True, slots=True)
class Throughput:
    """KV bytes per second from prefill pages to decode pages, beside a plain copy."""

    plane: str
    moved_bytes: int
    """Of one round."""
    piece_bytes: int
    """One writer's slice of one chunk."""
    bytes_per_s: float
    copy_bytes_per_s: float

    @property
    def ratio(self) -> float:
        """Staged throughput in plain copies."""
        return self.bytes_per_s / self.copy_bytes_per_s


@dataclass(frozen=True, slots=True)
class BenchReport:
    """All measurements of one run."""

    allocator: tuple[AllocatorCost, ...]
    throughput: tuple[Throughput, ...]

    def to_json(self) -> dict[str, object]:
        """The JSON object."""
        return {
            "allocator": [{"live_grants": row.live_grants, "pair_ns": round(row.pair_ns, 1)} for row in self.allocator],
            "throughput": [
                {
                    "plane": row.plane,
                    "moved_bytes": row.moved_bytes,
                    "piece_bytes": row.piece_bytes,
                    "bytes_per_s": round(row.bytes_per_s),
                    "copy_bytes_per_s": round(row.copy_bytes_per_s),
                    "ratio": round(row.ratio, 3),
                }
                for row in self.throughput
            ],
        }


def run_bench(size: BenchSize, view: ProgressView) -> BenchReport:
    """Measure everything. Raises ``DaemonDied``."""
    view.phase("allocator", len(LIVE_GRANTS))
    allocator = []
    for done, live in enumerate(LIVE_GRANTS, start=1):
        allocator.append(AllocatorCost(live, allocator_pair_ns(live, size.rounds)))
        view.advance(done)
    throughput = tuple(measure_plane(plane, size, view) for plane in PLANES)
    return BenchReport(tuple(allocator), throughput)


def allocator_pair_ns(live: int, rounds: int) -> float:
    """Nanoseconds of one assign and one free of the oldest of ``live`` grants."""
    allocator = StagingAllocator(1 << 40)
    granted = _grants(allocator)
    held = list(islice(granted, live))
    costs = []
    for _ in range(rounds):
        started = time.perf_counter_ns()
        held.extend(islice(granted, PAIRS))
        for alloc_id in held[:PAIRS]:
            allocator.free(alloc_id)
        costs.append((time.perf_counter_ns() - started) / PAIRS)
        del held[:PAIRS]
    return statistics.median(costs)


def _grants(allocator: StagingAllocator) -> Iterator[int]:
    while True:
        granted = allocator.assign(4096)
        assert not isinstance(granted, Oversized)
        yield granted.alloc_id


def copy_bytes_per_s(total: int, piece: int, rounds: int) -> float:
    """A plain copy of ``total`` bytes in pieces of ``piece`` bytes, by one thread."""
    source = np.ones(total, np.uint8)
    target = np.zeros(total, np.uint8)
    rates = []
    for _ in range(rounds):
        started = time.perf_counter()
        for start in range(0, total, piece):
            target[start : start + piece] = source[start : start + piece]
        rates.append(total / (time.perf_counter() - started))
    return statistics.median(rates)


def bench_shape(plane: str, size: BenchSize) -> PairShape:
    """One prefill rank and two decode ranks, so that heads are cut; rings of eight chunks."""
    preset = PRESETS[size.preset]
    return PairShape(preset.model, 1, 1, 2, plane, size.chunk_tokens, 0, preset.page_size, preset.page_size).with_ring_chunks(8)


def measure_plane(plane: str, size: BenchSize, view: ProgressView) -> Throughput:
    """Move the same requests several times over real daemons and take the median rate."""
    shape = bench_shape(plane, size)
    rounds = [
        [Request(index, f"round-{number}-{index}", size.tokens, 0) for index in range(size.requests)]
        for number in range(size.rounds + 1)
    ]
    moved = sum(shape.request_bytes(request.num_tokens) for request in rounds[0])
    report = RunReport(plane, len(rounds) * size.requests, 0, shape.ring_bytes)
    view.phase(f"{plane} plane", len(rounds))
    with (
        Workspace() as workspace,
        PoolSet.create(workspace.pools, shape, pool_sizes(shape, rounds[0], size.requests)) as pools,
        DaemonPair(shape, workspace, pools, view.say) as pair,
    ):
        engines = SimulatedEngines(shape, pools, pair, report, seed=0, deadline_s=120.0)
        seconds = asyncio.run(pair.run(_time_rounds(engines, rounds, view)))
    piece = shape.chunk_bytes(size.chunk_tokens)
    rate = moved / statistics.median(seconds)
    return Throughput(plane, moved, piece, rate, copy_bytes_per_s(moved, piece, size.rounds))


async def _time_rounds(engines: SimulatedEngines, rounds: Sequence[Sequence[Request]], view: ProgressView) -> list[float]:
    """Seconds of each round but the first, which opens sessions and touches memory for the first time."""
    seconds = []
    for done, requests in enumerate(rounds, start=1):
        started = time.perf_counter()
        await asyncio.gather(*(engines.play(request, verify=False) for request in requests))
        seconds.append(time.perf_counter() - started)
        view.advance(done)
    if engines.report.failures:
        raise RuntimeError(f"a request failed: {engines.report.failures[0]}")
    return seconds[1:]


def print_bench(report: BenchReport, console: Console) -> None:
    """Show two tables."""
    cost = Table(title="allocator: one assign and one free")
    cost.add_column("live grants", justify="right")
    cost.add_column("ns", justify="right")
    for row in report.allocator:
        cost.add_row(f"{row.live_grants:,}", f"{row.pair_ns:,.0f}")
    console.print(cost)
    rate = Table(title="prefill pages to decode pages, checksummed and verified")
    for name in ("plane", "slice", "GB/s", "plain copy GB/s", "ratio"):
        rate.add_column(name, justify="left" if name == "plane" else "right")
    for line in report.throughput:
        rates = (f"{line.bytes_per_s / 1e9:.2f}", f"{line.copy_bytes_per_s / 1e9:.2f}", f"{line.ratio:.2f}")
        rate.add_row(line.plane, f"{line.piece_bytes / 1e6:.1f} MB", *rates)
    console.print(rate)
