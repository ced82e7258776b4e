"""The prefill half of a data plane: a writable place for a slice, and the moment at which its bytes are visible to D."""

from typing import Protocol

from prefill_service.outputs import WriteChunk


class PlaneOpenError(Exception):
    """This plane cannot be opened here. The message says why; the prefill subscribes again without it."""


class RegionWriter(Protocol):
    """One open session of one plane.

    A worker thread calls ``acquire`` and fills the buffer; the thread that owns the sockets then calls ``commit``, and if that
    was not enough ``progress`` whenever the plane may move on, until the bytes are visible.
    """

    def acquire(self, write: WriteChunk) -> memoryview:
        """Give ``write.num_bytes`` writable bytes for the gather. Any thread."""

    def commit(self, write: WriteChunk, filled: memoryview) -> bool:
        """Hand over the filled bytes. True if they are visible to D already. Loop thread; never blocks."""

    def progress(self) -> tuple[int, ...]:
        """Push on unfinished commits; the ``write_id`` of each that has become visible. Loop thread; never blocks."""

    def release(self, write: WriteChunk) -> None:
        """The write is over, whatever became of it: its buffer may be used again once the plane is done reading it."""

    def close(self) -> None:
        """Unmap and close. No write of this session runs."""
