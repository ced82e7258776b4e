"""The KV pools of simulated engines: one per rank, in files of the run, with the page lists that go with them."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from lab.pages import PageAllocator, pages_needed
from lab.shape import PairShape
from lab.workload import Request
from runtime.pool import KvPool
from runtime.pool_layout import Arrangement, arrange_pool

PREFILL_ARRANGEMENT = Arrangement.TOKEN_MAJOR
DECODE_ARRANGEMENT = Arrangement.FUSED_PAGES
"""Unlike the prefill side's, so that no byte is right by accident of its place."""


@dataclass(frozen=True, slots=True)
class PoolSizes:
    """Pages of each prefill group's pools and of the decode pools."""

    prefill_pages: int
    decode_pages: int


def pool_sizes(shape: PairShape, requests: Sequence[Request], concurrency: int) -> PoolSizes:
    """Enough pages for any ``concurrency`` requests at once, whichever group they go to, and few enough to be reused often."""
    prefill = [pages_needed(r.num_tokens, shape.prefill_page_size, r.source_first_token) for r in requests]
    decode = [pages_needed(r.num_tokens, shape.decode_page_size, r.destination_first_token) for r in requests]
    return PoolSizes(*(sum(sorted(pages)[-concurrency:]) for pages in (prefill, decode)))


@dataclass(slots=True)
class PoolSet:
    """All pools of one deployment. A context manager: leaving it closes the pools; their files go with the run."""

    prefill: list[KvPool] = field(default_factory=list)
    """By prefill rank."""
    decode: list[KvPool] = field(default_factory=list)
    """By decode rank."""
    prefill_pages: list[PageAllocator] = field(default_factory=list)
    """By prefill group: its ranks keep the same page ids."""
    decode_pages: PageAllocator = field(default_factory=lambda: PageAllocator(0))
    _open: ExitStack = field(default_factory=ExitStack)

    @classmethod
    def create(cls, directory: Path, shape: PairShape, sizes: PoolSizes) -> Self:
        """Make the files and map them. Raises ``PoolError`` if the memory is not there."""
        pools = cls(
            prefill_pages=[PageAllocator(sizes.prefill_pages) for _ in range(shape.prefill_groups)],
            decode_pages=PageAllocator(sizes.decode_pages),
        )
        with pools._open:
            for rank in range(shape.prefill_ranks):
                layout = arrange_pool(
                    shape.prefill_layout(rank), shape.prefill_page_size, sizes.prefill_pages, PREFILL_ARRANGEMENT
                )
                pools.prefill.append(pools._open.enter_context(KvPool.create(directory / f"prefill-{rank}", layout)))
            for rank in range(shape.decode_ranks):
                layout = arrange_pool(shape.decode_layout(rank), shape.decode_page_size, sizes.decode_pages, DECODE_ARRANGEMENT)
                pools.decode.append(pools._open.enter_context(KvPool.create(directory / f"decode-{rank}", layout)))
            pools._open = pools._open.pop_all()
        return pools

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._open.close()
