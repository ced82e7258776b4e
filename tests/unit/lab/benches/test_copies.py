"""Gather and scatter are measured with the bytes that are said."""

import numpy as np

from decode_service.scatter import scatter
from lab.benches.copies import ROW_BYTES, CopyCase, target_of
from prefill_service.gather import gather


def test_a_copy_case_moves_every_byte_once() -> None:
    """The slice is the second head for a gather and the first for a scatter, and the case counts exactly its bytes."""
    case = CopyCase(64, 16, 1 << 16)
    case.pool.memory[:] = np.random.default_rng(1).integers(0, 256, case.pool.memory.nbytes, np.uint8)
    assert case.num_bytes * 2 == case.pool.memory.nbytes
    case.copy_s(gather)
    case.copy_s(scatter)
    for layer, tensor in ((0, 0), (3, 1), (7, 1)):
        heads = case.pool.view(layer, tensor)
        assert np.array_equal(heads[:, :, 0], heads[:, :, 1])


def test_row_sizes_have_the_targets_that_were_set() -> None:
    """0.85 from 1 KiB on, 0.5 at 256 B."""
    assert [[target.bound for target in target_of(size)] for size in ROW_BYTES] == [[], [0.5], [0.85], [0.85], [0.85], [0.85]]
