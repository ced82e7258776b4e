"""Memory for slices on their way out of a one-sided engine: one block, registered once, handed out in contiguous parts."""

import mmap

from prefill_service.writers.base import PlaneOpenError
from runtime.one_sided import address_of

ALIGNMENT = 64


class Arena:
    """One rank's memory for slices. The loop's thread reserves and releases; any thread may look at what is reserved.

    It lives as long as the process: an engine may still read from it after everything that we asked of it has ended.
    """

    def __init__(self, num_bytes: int) -> None:
        self._mapping = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._buffer = memoryview(self._mapping)
        self.num_bytes = num_bytes
        self.address = address_of(self._buffer)
        self._free: list[tuple[int, int]] = [(0, num_bytes)]
        """``(start, end)`` of every free part, in order; no two of them touch."""

    def check(self, num_bytes: int) -> None:
        """Raise ``PlaneOpenError`` if a slice of that size would never fit."""
        if num_bytes > self.num_bytes:
            text = f"a slice of a full chunk has {num_bytes} bytes, this rank's part of send_buffer_bytes {self.num_bytes}"
            raise PlaneOpenError(f"send_buffer_bytes: {text}; raise it, or lower chunk_tokens on both sides")

    def reserve(self, num_bytes: int) -> int | None:
        """Take the first part that is large enough; its offset, or ``None`` if there is none now."""
        size = _aligned(num_bytes)
        for index, (start, end) in enumerate(self._free):
            if end - start >= num_bytes:
                stop = min(start + size, end)
                self._free[index : index + 1] = [(stop, end)] if stop < end else []
                return start
        return None

    def view(self, offset: int, num_bytes: int) -> memoryview:
        """Writable bytes of a reserved part. Any thread."""
        return self._buffer[offset : offset + num_bytes]

    def release(self, offset: int, num_bytes: int) -> None:
        """Give a part back that was reserved with the same size."""
        self._free.append((offset, min(offset + _aligned(num_bytes), self.num_bytes)))
        self._free.sort()
        merged: list[tuple[int, int]] = []
        for start, end in self._free:
            if merged and merged[-1][1] == start:
                merged[-1] = (merged[-1][0], end)
            else:
                assert not merged or merged[-1][1] < start, "a part was released twice"
                merged.append((start, end))
        self._free = merged


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT
