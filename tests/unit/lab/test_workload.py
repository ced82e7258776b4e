"""The synthetic workload is what its description says, and the same every time."""

from lab.trace import TraceRequest
from lab.workload import RING_CHUNKS, Grid, Request, synthetic_workload, trace_workload

GRID = Grid(chunk_tokens=64, prefill_page_size=16, decode_page_size=8)


def test_the_same_seed_gives_the_same_requests() -> None:
    """A run can be repeated from its seed, and another seed is another workload."""
    assert synthetic_workload(50, 4, GRID, seed=7) == synthetic_workload(50, 4, GRID, seed=7)
    assert synthetic_workload(50, 4, GRID, seed=7) != synthetic_workload(50, 4, GRID, seed=8)


def test_every_edge_size_occurs() -> None:
    """One token, partly filled pages and chunks, exact ones, and chunks larger than half the default ring."""
    requests = synthetic_workload(60, 3, GRID, seed=0)
    sizes = {request.num_tokens for request in requests}
    assert {1, 7, 8, 9, 15, 16, 17, 63, 64, 65, 128, 191} <= sizes
    assert 2 * GRID.chunk_tokens > RING_CHUNKS * GRID.chunk_tokens
    assert {request.group for request in requests} == {0, 1, 2}
    assert len({request.room for request in requests}) == len(requests)


def test_prefixes_begin_inside_the_first_page_on_both_sides() -> None:
    """Some requests start in the middle of a page, always within it."""
    requests = synthetic_workload(100, 1, GRID, seed=0)
    assert any(request.source_first_token for request in requests)
    assert any(request.destination_first_token for request in requests)
    assert all(0 <= request.source_first_token < GRID.prefill_page_size for request in requests)
    assert all(0 <= request.destination_first_token < GRID.decode_page_size for request in requests)


def test_a_trace_keeps_its_order_sizes_and_times() -> None:
    """Requests of a trace go to the groups in turn and carry their arrival times."""
    trace = (TraceRequest(0.0, 5), TraceRequest(1.5, 9))
    assert trace_workload(trace, groups=2) == (
        Request(0, "request-000000", 5, 0, 0.0),
        Request(1, "request-000001", 9, 1, 1.5),
    )
