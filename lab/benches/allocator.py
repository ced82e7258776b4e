"""``allocator``: one assign and one free of the ring, while few, many and very many grants are live."""

import time
from collections.abc import Iterator
from itertools import islice
from random import Random

from decode_service.allocator import Allocation, Oversized, StagingAllocator
from lab.benches.effort import Effort
from lab.benches.rows import Row, median, ratio_at_most, value_at_most

LIVE_GRANTS = (10, 1_000, 1_000_000)
GRANT_BYTES = 4096
PAIR_US = 3.0
GROWTH = 1.3


class LiveRing:
    """A ring with a constant number of live grants, each of which is replaced again and again."""

    def __init__(self, live: int, *, in_order: bool) -> None:
        self._allocator = StagingAllocator(1 << 50)
        self._held = [self._grant().alloc_id for _ in range(live)]
        self._victims = self._in_order(live) if in_order else self._at_random(live)

    def pair_us(self, pairs: int) -> float:
        """Microseconds of one assign and one free, loop included; which grants go is drawn before the clock starts."""
        allocator, held, victims = self._allocator, self._held, list(islice(self._victims, pairs))
        started = time.perf_counter_ns()
        for victim in victims:
            granted = allocator.assign(GRANT_BYTES)
            allocator.free(held[victim])
            held[victim] = granted.alloc_id  # type: ignore[union-attr] # a grant of a page always fits
        return (time.perf_counter_ns() - started) / pairs / 1000

    def _grant(self) -> Allocation:
        granted = self._allocator.assign(GRANT_BYTES)
        assert not isinstance(granted, Oversized)
        return granted

    @staticmethod
    def _in_order(live: int) -> Iterator[int]:
        while True:
            yield from range(live)

    @staticmethod
    def _at_random(live: int) -> Iterator[int]:
        random = Random(live)
        while True:
            yield random.randrange(live)


def bench_allocator(effort: Effort) -> Iterator[Row]:
    """The sizes take turns in every round, so that a busy moment of the machine meets all of them."""
    rounds, pairs = effort.pick(5, 25), effort.pick(10_000, 40_000)
    for in_order in (True, False):
        order = "in order" if in_order else "out of order"
        effort.view.phase(f"allocator {order}", rounds)
        rings = {live: LiveRing(live, in_order=in_order) for live in LIVE_GRANTS}
        costs: dict[int, list[float]] = {live: [] for live in LIVE_GRANTS}
        for done in range(1, rounds + 1):
            for live, ring in rings.items():
                costs[live].append(ring.pair_us(pairs))
            effort.view.advance(done)
        fewest, *_, most = LIVE_GRANTS
        for live in LIVE_GRANTS:
            targets = (value_at_most(PAIR_US), *((ratio_at_most(GROWTH),) if live == most else ()))
            yield Row(f"allocator/{order}/{live} live", median(costs[live]), "us", median(costs[fewest]), targets)
