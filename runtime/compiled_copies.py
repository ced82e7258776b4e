"""Many short rows in one compiled loop, without the GIL: the extra ``fast`` (numba).

numpy pays a fixed price for each row, which short rows feel. This loop pays next to none, prefetches the rows that it reads
from pages, and writes past the caches (``runtime.compiled_instructions``). It works on bare addresses: whoever calls it has
checked that the pages are in the pool and that the block is long enough.
"""

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.compiled_instructions import LINE_BYTES, compile_instructions
from runtime.errors import StartError

Addresses = NDArray[np.int64]
PREFETCH_AHEAD_BYTES = 4096
PREFETCH_BYTES = 256
"""Of the row that is read that many bytes later, this much is prefetched; the processor guesses the rest of a longer row."""
CopyRows = Callable[[bool, int, int, int, int, int, Addresses, int, int, int], None]
"""``(to_pool, stacks, pool, pool_step, block, block_step, tokens, heads, head_stride, width)``, see ``copy_rows``."""


class CompiledCopiesError(ImportError):
    """numba is not installed, or does not work here."""


@cache
def load_copy_rows() -> CopyRows:
    """The loop, compiled once in this process (about a second). Raises ``CompiledCopiesError``."""
    try:
        import numba  # noqa: PLC0415 - an extra

        stream_row, prefetch_row, drain = compile_instructions()
    except ImportError as error:
        raise CompiledCopiesError(f"numba cannot be imported ({error}): pip install 'pd-staging[fast]'") from error
    memcpy = _memcpy()

    def copy_rows(
        to_pool: bool,
        stacks: int,
        pool: int,
        pool_step: int,
        block: int,
        block_step: int,
        tokens: Addresses,
        heads: int,
        head_stride: int,
        width: int,
    ) -> None:
        """Copy ``width`` bytes of each head of each token of each stack, between pages and block; all in bytes.

        ``tokens``: distance of each token's first head from ``pool``. In the block, heads and tokens follow without gaps.
        """
        streams = width % LINE_BYTES == 0
        ahead = max(1, PREFETCH_AHEAD_BYTES // (heads * width))
        last = tokens.shape[0] - 1
        for stack in range(stacks):
            staged = block + stack * block_step
            for index in range(last + 1):
                paged = pool + stack * pool_step + tokens[index]
                coming = pool + stack * pool_step + tokens[min(index + ahead, last)]
                for head in range(heads):
                    target, source = staged, paged + head * head_stride
                    if to_pool:
                        target, source = source, target
                    else:
                        prefetch_row(coming + head * head_stride, min(width, PREFETCH_BYTES))
                    if streams and target % LINE_BYTES == 0:
                        stream_row(target, source, width)
                    else:
                        memcpy(target, source, width)
                    staged += width
        drain()

    compiled: CopyRows = numba.njit("void(b1, i8, i8, i8, i8, i8, i8[::1], i8, i8, i8)", nogil=True)(copy_rows)
    return compiled


def require_compiled_copies(*, wanted: bool) -> None:
    """Compile the loop now, if it is wanted, rather than within the first transfer. Raises ``StartError``."""
    if not wanted:
        return
    try:
        load_copy_rows()
    except CompiledCopiesError as error:
        raise StartError("use compiled copies", str(error), "or leave compiled_copies out") from error


def address_of(memory: "memoryview | NDArray[np.uint8]") -> int:
    """Where a buffer's first byte is; 0 for an empty one."""
    return int(np.frombuffer(memory, np.uint8).ctypes.data) if len(memory) else 0


def _memcpy() -> Any:  # noqa: ANN401 - a function of the C library, as numba takes it
    memcpy = ctypes.CDLL(None).memcpy
    memcpy.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_size_t]
    memcpy.restype = ctypes.c_size_t
    return memcpy
