"""``gather`` and ``scatter``: bytes per second between pages and a staged block, beside a plain copy of as many bytes.

The pool holds two heads of a row and the slice is one of them, so that no two rows of the slice touch. Pages are shuffled:
neighbours in the room are hardly ever neighbours in memory, which is the worst that an engine's page table can be.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from random import Random

from decode_service.scatter import scatter
from lab.benches.effort import Effort
from lab.benches.raw import shared_memory
from lab.benches.rows import Row, Target, median, ratio_at_least
from prefill_service.gather import gather
from protocol.layout import ModelLayout, PageRun, RankLayout, TensorSpec, WriterSlice, writer_slice
from runtime.compiled_copies import CompiledCopiesError, load_copy_rows
from runtime.pool import KvPool
from runtime.pool_layout import arrange_pool

ROW_BYTES = (64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10)
PAGE_SIZES = (1, 16, 64)
SHORT_SIZES = ((256, 16), (1024, 16), (16 << 10, 1), (16 << 10, 64))
LAYERS = 8
LEAST_PAGES = 8

Copy = Callable[[KvPool, WriterSlice, PageRun, int, int, memoryview], None]


def target_of(row_bytes: int) -> tuple[Target, ...]:
    """What is promised for rows of this size."""
    if row_bytes >= 1024:
        return (ratio_at_least(0.85),)
    return (ratio_at_least(0.5),) if row_bytes == 256 else ()


class CopyCase:
    """One row size and page size: a pool, the slice of one of its two heads, and a block for all tokens."""

    def __init__(self, row_bytes: int, page_size: int, num_bytes: int, *, compiled: bool = False) -> None:
        specs = (TensorSpec("k", 2, row_bytes, "uint8"), TensorSpec("v", 2, row_bytes, "uint8"))
        model = ModelLayout((specs,) * LAYERS)
        whole = RankLayout(model, 0, 1, 0, 1, (0, LAYERS))
        half = RankLayout(model, 1, 2, 0, 1, (0, LAYERS))
        self.slice = writer_slice(whole, half)
        pages = max(LEAST_PAGES, num_bytes // (self.slice.token_bytes * page_size))
        self.num_tokens = pages * page_size
        layout = arrange_pool(whole, page_size, pages)
        self.pool = KvPool.over(shared_memory(layout.total_bytes), layout)
        self.pool.compiled_copies = compiled
        order = list(range(pages))
        Random(1).shuffle(order)
        self.run = PageRun(tuple(order))
        self.num_bytes = self.num_tokens * self.slice.token_bytes
        self.block = shared_memory(self.num_bytes).data
        self._other = shared_memory(self.num_bytes).data

    def copy_s(self, copy: Copy) -> float:
        """Seconds of one gather or scatter of everything."""
        began = time.perf_counter()
        copy(self.pool, self.slice, self.run, 0, self.num_tokens, self.block)
        return time.perf_counter() - began

    def plain_s(self) -> float:
        """Seconds of one plain copy of as many bytes."""
        began = time.perf_counter()
        self._other[:] = self.block
        return time.perf_counter() - began


def bench_gather(effort: Effort) -> Iterator[Row]:
    """Pages to block, from every other row of the pool."""
    return _bench("gather", gather, effort)


def bench_scatter(effort: Effort) -> Iterator[Row]:
    """Block to pages, into every other row of the pool."""
    return _bench("scatter", scatter, effort)


def _bench(name: str, copy: Copy, effort: Effort) -> Iterator[Row]:
    """With numpy, and beside it in the compiled loop where that can be had."""
    sizes = [(row, page) for row in ROW_BYTES for page in PAGE_SIZES if not effort.short or (row, page) in SHORT_SIZES]
    ways = ("numpy", "compiled") if has_compiled_copies() else ("numpy",)
    effort.view.phase(name, len(sizes))
    for done, (row_bytes, page_size) in enumerate(sizes, start=1):
        rates = _rates(copy, row_bytes, page_size, ways, effort)
        plain = rates.pop("plain")
        for way, rate in rates.items():
            title = f"{name}/{way}/{row_bytes} B rows, pages of {page_size}"
            yield Row(title, rate, "GB/s", plain, target_of(row_bytes))
        effort.view.advance(done)


def _rates(copy: Copy, row_bytes: int, page_size: int, ways: tuple[str, ...], effort: Effort) -> dict[str, float]:
    """GB/s of each way and of a plain copy, taken in turns."""
    rounds, num_bytes = effort.pick(5, 15), effort.pick(32 << 20, 64 << 20)
    cases = {way: CopyCase(row_bytes, page_size, num_bytes, compiled=way == "compiled") for way in ways}
    plain = cases[ways[0]]
    runs: dict[str, Callable[[], float]] = {
        "plain": plain.plain_s,
        **{way: partial(case.copy_s, copy) for way, case in cases.items()},
    }
    for run in runs.values():
        run()
    times: dict[str, list[float]] = {way: [] for way in runs}
    for _ in range(rounds):
        for way, run in runs.items():
            times[way].append(run())
    return {way: plain.num_bytes / median(taken) / 1e9 for way, taken in times.items()}


def has_compiled_copies() -> bool:
    """Whether the compiled loop can be had here."""
    try:
        load_copy_rows()
    except CompiledCopiesError:
        return False
    return True
