"""The prefill half of a data plane: a writable place for a slice, and the moment at which its bytes are visible to D."""

from typing import NamedTuple, Protocol

import zmq

from prefill_service.outputs import WriteChunk


class PlaneOpenError(Exception):
    """This plane cannot be opened here. The message says why; the prefill subscribes again without it."""


class WriteFailure(NamedTuple):
    """A handed-over write that ended without being complete, and why."""

    write_id: int
    reason: str


class RegionWriter(Protocol):
    """One open session of one plane.

    The thread that owns the sockets asks ``admits`` before it starts a write. A worker thread then calls ``acquire``, fills the
    buffer and calls ``launch``; the loop's thread calls ``commit``, and if that was not enough ``progress`` whenever ``socket``
    is writable or ``poll_s`` has passed, until the bytes are visible or the write is among ``take_failures``; and in the end
    ``release``, exactly once for every admitted write.
    """

    name: str

    @property
    def poll_s(self) -> float | None:
        """How often to call ``progress`` while a write is handed over; ``None`` for a plane that says when."""

    @property
    def socket(self) -> zmq.Socket[bytes] | None:
        """What to wait for while ``unfinished``; ``None`` for a plane that never is."""

    @property
    def unfinished(self) -> bool:
        """True while something waits for the socket to become writable."""

    @property
    def handed_over(self) -> int:
        """Bytes given to the socket so far: a number that grows as long as the peer takes them."""

    def admits(self, write: WriteChunk) -> bool:
        """Reserve what the write needs, or say that it must wait until others are released. Loop thread."""

    def acquire(self, write: WriteChunk) -> memoryview:
        """Give ``write.num_bytes`` writable bytes for the gather. Any thread."""

    def launch(self, write: WriteChunk) -> None:
        """Start moving the filled bytes, where that may block. Any thread. Raises ``OneSidedError``."""

    def commit(self, write: WriteChunk, filled: memoryview) -> bool:
        """Hand over the filled bytes. True if they are visible to D already. Loop thread; never blocks."""

    def progress(self) -> tuple[int, ...]:
        """Push on unfinished commits; the ``write_id`` of each that has become visible. Loop thread; never blocks."""

    def take_failures(self) -> tuple[WriteFailure, ...]:
        """The handed-over writes that have failed since the last call. Loop thread."""

    def send(self, frames: list[bytes]) -> bool:
        """Send a message that must not overtake the bytes handed over so far. False if it was dropped. Loop thread."""

    def release(self, write: WriteChunk) -> None:
        """The write is over, whatever became of it: its buffer may be used again once the plane is done reading it."""

    def close(self) -> None:
        """Unmap and close. No write of this session runs."""
