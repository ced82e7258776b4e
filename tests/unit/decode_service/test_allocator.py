"""The ring against a model that owns every byte of an endless tape, and the sequences that hung other implementations."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decode_service.allocator import Allocation, Oversized, StagingAllocator
from protocol.watermark import START, Watermark, is_watermark_ready

TOTAL = 100


def grant(ring: StagingAllocator, num_bytes: int) -> Allocation:
    """Assign what certainly fits the ring."""
    allocation = ring.assign(num_bytes)
    assert isinstance(allocation, Allocation)
    return allocation


def ready(watermark: Watermark, allocation: Allocation, num_bytes: int) -> bool:
    """Whether a writer that believes ``watermark`` may write."""
    return is_watermark_ready(watermark, allocation.round, allocation.offset + num_bytes)


def test_empty_ring_restarts_at_zero() -> None:
    """When the last live grant is freed the ring starts over, so a chunk larger than half the ring is ready at once."""
    ring = StagingAllocator(100)
    first = grant(ring, 60)
    assert (first.offset, first.round) == (0, 0)
    assert ring.free(first.alloc_id)
    assert ring.get_watermark() == (1, 0)
    second = grant(ring, 70)
    assert (second.offset, second.round) == (0, 1)
    assert ready(ring.get_watermark(), second, 70)


def test_newcomer_at_zero_is_refused_until_it_knows_the_watermark() -> None:
    """Every drain raises the round, so only the snapshot lets a session that starts later write (field notes A2)."""
    ring = StagingAllocator(100)
    for _ in range(3):
        ring.free(grant(ring, 40).alloc_id)
    assert ring.get_watermark() == (3, 0)
    late = grant(ring, 40)
    assert late.round == 3
    assert not ready(START, late, 40)
    assert ready(ring.get_watermark(), late, 40)


def test_watermark_moves_past_the_freed_front_only() -> None:
    """Frees out of order wait for the oldest, and then count all at once (field notes A10)."""
    ring = StagingAllocator(100)
    a, b, c, d = (grant(ring, num_bytes) for num_bytes in (30, 30, 30, 50))
    assert (d.offset, d.round) == (0, 1)
    ring.free(b.alloc_id)
    ring.free(c.alloc_id)
    assert ring.get_watermark() == (0, 0)
    ring.free(a.alloc_id)
    assert ring.get_watermark() == (1, 0)
    assert ready(ring.get_watermark(), d, 50)
    ring.free(d.alloc_id)
    assert (ring.get_watermark(), ring.head) == ((2, 0), 0)


def test_grant_that_fits_exactly_stays_in_its_round() -> None:
    """The last byte of the ring is used before the ring wraps."""
    ring = StagingAllocator(100)
    grant(ring, 60)
    assert grant(ring, 40)[1:] == (60, 0)
    assert grant(ring, 1)[1:] == (0, 1)


def test_whole_ring_can_be_granted() -> None:
    """A region as large as the ring is granted, again and again."""
    ring = StagingAllocator(100)
    first, second = grant(ring, 100), grant(ring, 100)
    assert (first.round, second.round) == (0, 1)
    assert not ready(ring.get_watermark(), second, 100)
    ring.free(first.alloc_id)
    assert ready(ring.get_watermark(), second, 100)


def test_oversized_is_a_typed_answer_that_changes_nothing() -> None:
    """One byte more than the ring can never be granted: a value says so, and no later grant notices."""
    ring = StagingAllocator(100)
    held = grant(ring, 60)
    before = (ring.head, ring.round, ring.live_count, ring.get_watermark(), ring.oldest())
    assert ring.assign(101) == Oversized(requested_bytes=101, total_bytes=100)
    assert (ring.head, ring.round, ring.live_count, ring.get_watermark(), ring.oldest()) == before
    assert grant(ring, 40) == (held.alloc_id + 1, 60, 0)


@pytest.mark.parametrize("num_bytes", [0, -1, -100])
def test_sizes_that_are_not_positive_are_our_bug(num_bytes: int) -> None:
    """Nothing is granted for no bytes; asking for it raises and changes nothing."""
    ring = StagingAllocator(100)
    with pytest.raises(ValueError, match="expected a positive number of bytes"):
        ring.assign(num_bytes)
    assert (ring.head, ring.round, ring.live_count) == (0, 0, 0)


@pytest.mark.parametrize("total", [0, -5])
def test_ring_has_bytes(total: int) -> None:
    """A ring without bytes cannot be made."""
    with pytest.raises(ValueError, match="total_size"):
        StagingAllocator(total)


@dataclass
class Tape:
    """An endless tape of which round ``r`` is bytes ``[r * TOTAL, (r + 1) * TOTAL)``; each byte has at most one live owner."""

    owner: dict[int, int] = field(default_factory=dict)
    """Live owner of each tape position."""
    live: dict[int, tuple[int, int]] = field(default_factory=dict)
    """First and last position plus one of each live grant, in the order of granting."""
    newest: int = -1
    """The last position ever granted."""

    def take(self, allocation: Allocation, num_bytes: int) -> None:
        """Own the bytes of a grant; each must be new, and lie after every byte ever granted."""
        start = allocation.round * TOTAL + allocation.offset
        assert start > self.newest
        assert start // TOTAL == (start + num_bytes - 1) // TOTAL, "a grant is never split over the edge"
        for position in range(start, start + num_bytes):
            assert position not in self.owner
            self.owner[position] = allocation.alloc_id
        self.live[allocation.alloc_id] = (start, start + num_bytes)
        self.newest = start + num_bytes - 1

    def give_back(self, alloc_id: int) -> None:
        """Own the bytes of a grant no more."""
        for position in range(*self.live.pop(alloc_id)):
            del self.owner[position]

    def watermark(self) -> Watermark | None:
        """The place of the first owned byte."""
        return Watermark(*divmod(min(self.owner), TOTAL)) if self.owner else None

    def may_write(self, alloc_id: int) -> bool:
        """The truth about readiness: no byte of the ring that this grant covers is owned by an earlier one."""
        start, end = self.live[alloc_id]
        places = {position % TOTAL for position in range(start, end)}
        return not any(position % TOTAL in places for position in self.owner if position < start)


Step = Callable[[StagingAllocator, Tape], None]


def assign_step(num_bytes: int) -> Step:
    """Grant, and let the model own the bytes."""

    def step(ring: StagingAllocator, tape: Tape) -> None:
        allocation = ring.assign(num_bytes)
        if num_bytes > TOTAL:
            assert allocation == Oversized(num_bytes, TOTAL)
        else:
            assert isinstance(allocation, Allocation)
            tape.take(allocation, num_bytes)

    return step


def free_step(choice: int) -> Step:
    """Free one live grant, twice: the second time changes nothing."""

    def step(ring: StagingAllocator, tape: Tape) -> None:
        if not tape.live:
            assert not ring.free(choice)
            return
        alloc_id = tuple(tape.live)[choice % len(tape.live)]
        tape.give_back(alloc_id)
        assert ring.free(alloc_id)
        after = (ring.get_watermark(), ring.head, ring.live_count)
        assert not ring.free(alloc_id)
        assert not ring.free(-alloc_id)
        assert (ring.get_watermark(), ring.head, ring.live_count) == after

    return step


sizes = st.one_of(st.integers(1, TOTAL + 5), st.integers(1, 15), st.integers(TOTAL // 2, TOTAL))
steps = st.lists(st.one_of(sizes.map(assign_step), st.integers(0, 30).map(free_step)), max_size=60)


@given(steps)
def test_ring_is_right_about_every_byte(sequence: list[Step]) -> None:
    """Any sequence keeps the invariants: disjoint, monotone, oldest ready, empty restarts, readiness is never a false yes."""
    ring, tape = StagingAllocator(TOTAL), Tape()
    watermark, newest_round = ring.get_watermark(), -1
    for step in sequence:
        step(ring, tape)
        assert ring.get_watermark() >= watermark
        watermark = ring.get_watermark()
        newest_round = max(newest_round, tape.newest // TOTAL)
        check_against_model(ring, tape, newest_round)


def check_against_model(ring: StagingAllocator, tape: Tape, newest_round: int) -> None:
    """Compare all that the ring says with the tape."""
    watermark = ring.get_watermark()
    assert ring.live_count == len(tape.live)
    assert ring.oldest() == next(iter(tape.live), None)
    if not tape.live:
        assert ring.head == 0
        assert watermark == (ring.round, 0)
        assert newest_round == -1 or ring.round > newest_round
        return
    assert watermark == tape.watermark()
    writable = [alloc_id for alloc_id, (start, end) in tape.live.items() if is_ready(watermark, start, end)]
    assert next(iter(tape.live)) in writable, "the oldest live grant is always ready"
    assert all(tape.may_write(alloc_id) for alloc_id in writable), "a ready grant holds nothing of an earlier one"
    places = [position % TOTAL for alloc_id in writable for position in range(*tape.live[alloc_id])]
    assert len(places) == len(set(places)), "no byte of the ring is in two ready grants"


def is_ready(watermark: Watermark, start: int, end: int) -> bool:
    """The rule, for a grant given by its tape positions."""
    return is_watermark_ready(watermark, start // TOTAL, (end - 1) % TOTAL + 1)


@given(steps)
def test_everything_freed_leaves_a_fresh_ring(sequence: list[Step]) -> None:
    """After any history, once all is freed a grant of the whole ring is ready at once."""
    ring, tape = StagingAllocator(TOTAL), Tape()
    for step in sequence:
        step(ring, tape)
    for alloc_id in tuple(tape.live):
        assert ring.free(alloc_id)
    assert ready(ring.get_watermark(), grant(ring, TOTAL), TOTAL)


def test_memory_follows_what_is_live_while_the_oldest_grant_is_pinned() -> None:
    """A grant that is never freed does not make the ring remember all the grants that came and went behind it."""
    ring = StagingAllocator(100)
    grant(ring, 10)
    for _ in range(100_000):
        ring.free(grant(ring, 60).alloc_id)
    assert ring.get_watermark() == (0, 0)
    assert [len(held) for held in vars(ring).values() if hasattr(held, "__len__")] == [1]


def test_verbs_do_not_scan_what_is_live() -> None:
    """With 100,000 grants live, each verb touches a few entries and not all of them."""
    ring = StagingAllocator(100_000)
    ids = [grant(ring, 1).alloc_id for _ in range(100_000)]
    table = CountingTable(ring._live)
    ring._live = table  # type: ignore[assignment]
    for alloc_id in ids[1:50_000]:
        ring.free(alloc_id)
    assert ring.get_watermark() == (0, 0)
    ring.free(ids[0])
    assert ring.get_watermark() == (0, 50_000)
    ring.assign(1)
    assert ring.oldest() == ids[50_000]
    assert table.touched < 4 * 50_000 + 20


class CountingTable:
    """A stand-in for the table of live grants that counts the entries each operation touches."""

    def __init__(self, table: dict[int, Allocation]) -> None:
        self._table = table
        self.touched = 0

    def __len__(self) -> int:
        return len(self._table)

    def __setitem__(self, key: int, value: Allocation) -> None:
        self.touched += 1
        self._table[key] = value

    def pop(self, key: int, default: None) -> Allocation | None:
        """One entry."""
        self.touched += 1
        return self._table.pop(key, default)

    def __iter__(self) -> Iterator[int]:
        for key in self._table:
            self.touched += 1
            yield key

    def values(self) -> Iterator[Allocation]:
        """Entries as they are asked for."""
        for value in self._table.values():
            self.touched += 1
            yield value
