"""The ring is measured with the number of live grants that is said."""

import pytest

from lab.benches.allocator import LiveRing


@pytest.mark.parametrize("in_order", [True, False])
def test_the_ring_keeps_its_number_of_live_grants(in_order: bool) -> None:
    """Each pair replaces one grant."""
    ring = LiveRing(10, in_order=in_order)
    assert ring.pair_us(25) > 0
    assert ring._allocator.live_count == 10
