"""The readiness rule is safe and complete: it passes exactly the grants whose bytes hold nothing alive."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.watermark import START, Watermark, is_watermark_ready


class ModelRing:
    """An obviously right ring: every live grant is kept with its bytes, and readiness asks each of them.

    A grant may be written when no *earlier* live grant holds one of its bytes.
    """

    def __init__(self, total_size: int) -> None:
        self.total_size = total_size
        self.round, self.head = 0, 0
        self.live: list[tuple[int, int, int]] = []

    def assign(self, n: int) -> tuple[int, int, int]:
        """Grant ``n`` bytes as ``(round, offset, end)``."""
        if self.head + n > self.total_size:
            self.round, self.head = self.round + 1, 0
        grant = (self.round, self.head, self.head + n)
        self.head += n
        self.live.append(grant)
        return grant

    def free(self, index: int) -> None:
        """Free the ``index``-th oldest live grant."""
        del self.live[index]
        if not self.live:
            self.round, self.head = self.round + 1, 0

    @property
    def watermark(self) -> Watermark:
        """Place of the oldest live grant."""
        return Watermark(*self.live[0][:2]) if self.live else Watermark(self.round, self.head)

    def holds_nothing_alive(self, grant: tuple[int, int, int]) -> bool:
        """Whether no earlier live grant shares a byte with ``grant``."""
        earlier = self.live[: self.live.index(grant)]
        return all(end <= grant[1] or grant[2] <= offset for _, offset, end in earlier)


def _check(ring: ModelRing) -> None:
    for grant in ring.live:
        ready = is_watermark_ready(ring.watermark, grant[0], grant[2])
        if ready:
            assert ring.holds_nothing_alive(grant)
    if ring.live:
        assert is_watermark_ready(ring.watermark, ring.live[0][0], ring.live[0][2])


def _explore(total_size: int, depth: int) -> int:
    """Run every sequence of ``depth`` assigns and frees, up to ``total_size`` bytes and the first three live grants each."""
    choices = [*((True, n) for n in range(1, total_size + 1)), *((False, index) for index in range(3))]
    checked = 0
    for steps in product(choices, repeat=depth):
        ring = ModelRing(total_size)
        for is_assign, value in steps:
            if is_assign:
                ring.assign(value)
            elif value < len(ring.live):
                ring.free(value)
            else:
                break
            _check(ring)
            checked += 1
    return checked


@pytest.mark.parametrize(("total_size", "depth"), [(1, 6), (2, 6), (3, 5), (4, 5)])
def test_no_ready_grant_overlaps_a_live_one(total_size: int, depth: int) -> None:
    """In every short history of a small ring a ready grant shares no byte with an older live one, and the oldest is ready."""
    assert _explore(total_size, depth) > total_size


@given(st.integers(1, 50), st.lists(st.tuples(st.booleans(), st.integers(0, 10**6)), max_size=60))
def test_long_histories(total_size: int, steps: list[tuple[bool, int]]) -> None:
    """The same holds in long random histories, and the watermark never falls."""
    ring = ModelRing(total_size)
    last = START
    for is_assign, value in steps:
        if is_assign:
            ring.assign(value % total_size + 1)
        elif ring.live:
            ring.free(value % len(ring.live))
        _check(ring)
        assert ring.watermark >= last
        last = ring.watermark


@given(
    st.tuples(st.integers(0, 3), st.integers(0, 4)),
    st.tuples(st.integers(0, 3), st.integers(0, 4)),
    st.integers(0, 4),
    st.integers(1, 4),
)
def test_a_larger_watermark_never_closes_a_gate(one: tuple[int, int], other: tuple[int, int], round: int, end: int) -> None:
    """Readiness is monotonic, so a late or repeated watermark can only make a writer wait, never write too early."""
    smaller, larger = sorted((one, other))
    assert is_watermark_ready(larger, round, end) or not is_watermark_ready(smaller, round, end)


@pytest.mark.parametrize(
    ("watermark", "round", "end", "ready"),
    [
        ((0, 0), 0, 100, True),
        ((0, 60), 1, 60, True),
        ((0, 60), 1, 61, False),
        ((0, 60), 1, 70, False),
        ((1, 0), 1, 70, True),
        ((1, 0), 2, 1, False),
        ((0, 99), 2, 1, False),
        ((3, 0), 3, 100, True),
        ((5, 0), 1, 100, True),
    ],
)
def test_examples(watermark: tuple[int, int], round: int, end: int, ready: bool) -> None:
    """The rule, at its edges; the fourth row is the hang that a ring without restart runs into."""
    assert is_watermark_ready(watermark, round, end) is ready


def test_watermarks_compare_by_round_first() -> None:
    """A later round is larger whatever its tail, so a restart to tail 0 still moves forward."""
    assert Watermark(1, 0) > Watermark(0, 10**12)
    assert Watermark(1, 1) > Watermark(1, 0)
    assert Watermark(0, 0) == START
