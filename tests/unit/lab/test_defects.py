"""Each fix that is taken away hangs the ring by its own mechanism, and repair heals exactly what it can heal."""

import numpy as np
import pytest

from decode_service.allocator import Allocation
from lab.defects import CorruptingScatter, ParkedAllocator
from protocol.layout import PageRun, writer_slice
from runtime.pool import KvPool
from runtime.pool_layout import arrange_pool
from tests.unit.lab.machines import LAYOUT, JoinedMachines


def drained(*, restart: bool, snapshot: bool, repair: bool) -> JoinedMachines:
    """A ring of 100 in which the sessions that exist from the start have moved 60 and nothing is live any more."""
    machines = JoinedMachines(restart=restart, snapshot=snapshot, repair=repair)
    assert all(machines.send(f"early-{number}", "first", 15) for number in range(4))
    return machines


def test_a_parked_head_refuses_a_chunk_larger_than_half_of_the_ring() -> None:
    """The watermark of an empty ring that did not restart stays at the old head, and assigning does not move it."""
    ring = ParkedAllocator(100)
    first = ring.assign(60)
    assert isinstance(first, Allocation)
    assert ring.free(first.alloc_id)
    assert ring.get_watermark() == (0, 60)
    second = ring.assign(70)
    assert isinstance(second, Allocation)
    assert (second.offset, second.round) == (0, 1)
    assert ring.get_watermark() == (0, 60)


@pytest.mark.parametrize(
    ("restart", "snapshot", "repair", "moves"),
    [
        (False, False, False, False),
        (True, False, False, False),
        (False, True, False, False),
        (True, True, False, True),
        (False, False, True, False),
        (True, False, True, True),
        (False, True, True, False),
        (True, True, True, True),
    ],
)
def test_a_session_that_begins_after_the_drain_needs_both_fixes(
    *, restart: bool, snapshot: bool, repair: bool, moves: bool
) -> None:
    """Without repair only the arm with both fixes moves; repair makes up for the snapshot and never for the restart."""
    machines = drained(restart=restart, snapshot=snapshot, repair=repair)
    moved = machines.send("late", "second", 70)
    machines.wait(5.0)
    assert (machines.decode.room_end("late") is not None) is moves
    assert moved is moves, "whoever moves does so at once, and waiting brings nothing"


def test_heartbeats_renew_leases_without_repair() -> None:
    """A session outlives its lease many times over although no heartbeat is followed by a watermark."""
    machines = drained(restart=True, snapshot=False, repair=False)
    machines.send("late", "second", 70)
    machines.wait(60.0)
    decode, prefills = machines.snapshots()
    assert [session["fenced"] for session in decode[0]["sessions"]] == [False, False]
    assert all(peer["state"] == "current" for rank in prefills for peer in rank["peers"])


def test_corruption_flips_one_byte_of_one_slice_once() -> None:
    """The first slice arrives with one byte wrong and the ring's own bytes stay; every later slice is right."""
    layout = arrange_pool(LAYOUT, page_size=8, num_pages=2)
    pool = KvPool(np.zeros(layout.total_bytes, np.uint8), layout)
    writer = writer_slice(layout.rank, layout.rank)
    block = memoryview(bytearray(range(8)))
    corrupting = CorruptingScatter()
    for page, wrong in ((0, 1), (1, 0)):
        corrupting(pool, writer, PageRun((page,)), 0, 8, block)
        assert np.count_nonzero(pool.view(0, 0)[page].ravel() != np.arange(8)) == wrong
    assert bytes(block) == bytes(range(8))
