"""What compiled code asks of the processor, called from compiled code as the copies do."""

import numba
import numpy as np

from runtime.compiled_copies import address_of
from runtime.compiled_instructions import LINE_BYTES, compile_instructions


def test_whole_lines_are_streamed_and_nothing_else_is_touched() -> None:
    """Three lines of five, from a source that is not aligned; a prefetch of no mapped memory does no harm."""
    stream_row, prefetch_row, drain = compile_instructions()

    def copy(target: int, source: int, width: int) -> None:
        prefetch_row(source, width)
        prefetch_row(0, width)
        stream_row(target, source, width)
        drain()

    source = np.arange(5 * LINE_BYTES, dtype=np.uint16).astype(np.uint8) | np.uint8(1)
    memory = np.zeros(6 * LINE_BYTES, np.uint8)
    begin = -address_of(memory) % LINE_BYTES
    width = 3 * LINE_BYTES
    numba.njit("void(i8, i8, i8)")(copy)(address_of(memory) + begin, address_of(source) + 1, width)
    assert np.array_equal(memory[begin : begin + width], source[1 : 1 + width])
    assert np.count_nonzero(memory) == width
