"""Registered memory is handed out in parts that never overlap, and comes back whole."""

from random import Random

import pytest

from prefill_service.writers.arena import Arena
from prefill_service.writers.base import PlaneOpenError
from runtime.one_sided import address_of


def test_parts_never_overlap_and_all_comes_back() -> None:
    """Whatever is reserved and released in whatever order, no byte has two holders, and in the end one part is the whole."""
    arena, order = Arena(10_000), Random(1)
    held: list[tuple[int, int]] = []
    for _ in range(2000):
        size = order.randrange(1, 3000)
        if held and order.random() < 0.5:
            arena.release(*held.pop(order.randrange(len(held))))
        elif (offset := arena.reserve(size)) is not None:
            assert all(offset + size <= start or start + length <= offset for start, length in held)
            assert offset + size <= arena.num_bytes
            held.append((offset, size))
    for part in held:
        arena.release(*part)
    assert arena.reserve(10_000) == 0
    assert arena.reserve(1) is None


def test_a_view_is_the_registered_memory() -> None:
    """What is written through a view lies at the arena's address."""
    arena = Arena(4096)
    assert address_of(arena.view(128, 10)) == arena.address + 128
    assert arena.view(128, 10).nbytes == 10


def test_a_slice_that_never_fits_is_said_at_once() -> None:
    """Not after a wait for memory that cannot come: the setting is named when the plane is opened."""
    with pytest.raises(PlaneOpenError, match=r"send_buffer_bytes: .* 4097 bytes"):
        Arena(4096).check(4097)


def test_a_double_release_is_seen() -> None:
    """It would hand the same bytes to two slices."""
    arena = Arena(4096)
    offset = arena.reserve(100)
    assert offset is not None
    arena.release(offset, 100)
    with pytest.raises(AssertionError, match="twice"):
        arena.release(offset, 100)
