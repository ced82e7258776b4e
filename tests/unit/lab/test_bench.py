"""Measurements are positive, and reported beside what they compare with; no test judges their size."""

import io

from rich.console import Console

from lab.bench import (
    PLANES,
    SHORT,
    AllocatorCost,
    BenchReport,
    Throughput,
    allocator_pair_ns,
    bench_shape,
    copy_bytes_per_s,
    print_bench,
)


def test_costs_are_measured() -> None:
    """An allocator pair and a plain copy take some time."""
    assert allocator_pair_ns(live=10, rounds=1) > 0
    assert copy_bytes_per_s(total=1 << 20, piece=1 << 16, rounds=1) > 0


def test_heads_are_cut_on_every_plane() -> None:
    """One prefill rank feeds two decode ranks through rings of several chunks."""
    for plane in PLANES:
        shape = bench_shape(plane, SHORT)
        assert (shape.prefill_ranks, shape.decode_ranks) == (1, 2)
        assert shape.ring_bytes == 8 * shape.chunk_bytes(SHORT.chunk_tokens)


def test_the_report_shows_ratios() -> None:
    """Staged throughput stands beside the plain copy of the same run."""
    report = BenchReport((AllocatorCost(1, 900.0),), (Throughput("shm", 1 << 30, 1 << 20, 2e9, 8e9),))
    assert report.to_json() == {
        "allocator": [{"live_grants": 1, "pair_ns": 900.0}],
        "throughput": [
            {
                "plane": "shm",
                "moved_bytes": 1 << 30,
                "piece_bytes": 1 << 20,
                "bytes_per_s": 2_000_000_000,
                "copy_bytes_per_s": 8_000_000_000,
                "ratio": 0.25,
            }
        ],
    }
    text = io.StringIO()
    print_bench(report, Console(file=text, width=100))
    assert "0.25" in text.getvalue()
