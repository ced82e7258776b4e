"""The ``nixl`` and ``mooncake`` planes, prefill half: a slice is gathered into registered memory, and the engine writes it.

A slice counts as visible when the engine reports its write as complete. Nothing else is known for certain about such a write:
when it fails, or is given up after ``timeout_s``, its bytes may still land, and so the machine never uses that grant again.
"""

from dataclasses import dataclass

from prefill_service.outputs import OpenPlane, WriteChunk
from prefill_service.writers.arena import Arena
from prefill_service.writers.base import PlaneOpenError, WriteFailure
from runtime.one_sided import Initiator, Link, OneSidedError, Transfer

POLL_S = 0.0005
"""How soon a running write is asked again whether it is complete. Nothing is asked while none runs."""


@dataclass(slots=True)
class _Outgoing:
    """One write from ``admits`` to ``release``; ``transfer`` while the engine has it."""

    write: WriteChunk
    offset: int
    transfer: Transfer | None = None


class OneSidedWriter:
    """One session's way into one ring."""

    socket = None
    unfinished = False
    poll_s = POLL_S

    def __init__(self, name: str, link: Link, arena: Arena) -> None:
        self.name = name
        self._link = link
        self._arena = arena
        self._outgoing: dict[int, _Outgoing] = {}
        self._committed: set[int] = set()
        self._failures: list[WriteFailure] = []
        self.handed_over = 0

    def admits(self, write: WriteChunk) -> bool:
        """Reserve registered memory for this slice, or say that it must wait until others have left."""
        offset = self._arena.reserve(write.num_bytes)
        if offset is None:
            return False
        self._outgoing[write.write_id] = _Outgoing(write, offset)
        return True

    def acquire(self, write: WriteChunk) -> memoryview:
        """Registered memory for the slice. Any thread; after ``admits``."""
        return self._arena.view(self._outgoing[write.write_id].offset, write.num_bytes)

    def launch(self, write: WriteChunk) -> None:
        """Start the write. Any thread, since it may have to connect first. Raises ``OneSidedError``."""
        outgoing = self._outgoing[write.write_id]
        local = self._arena.address + outgoing.offset
        outgoing.transfer = self._link.start(local, write.offset, write.num_bytes)

    def commit(self, write: WriteChunk, filled: memoryview) -> bool:  # noqa: ARG002 - the plane's interface
        """False: ``progress`` says when the engine reports the write as complete."""
        self._committed.add(write.write_id)
        return False

    def progress(self) -> tuple[int, ...]:
        """Ask after every running write; those that are complete."""
        finished: list[int] = []
        for write_id in tuple(self._committed):
            outgoing = self._outgoing[write_id]
            assert outgoing.transfer is not None
            try:
                if not outgoing.transfer.is_done():
                    continue
            except OneSidedError as error:
                self._failures.append(WriteFailure(write_id, str(error)))
            else:
                self.handed_over += outgoing.write.num_bytes
                finished.append(write_id)
            outgoing.transfer = None
            self._committed.discard(write_id)
        return tuple(finished)

    def take_failures(self) -> tuple[WriteFailure, ...]:
        """The writes that have failed since the last call."""
        failures, self._failures = tuple(self._failures), []
        return failures

    def send(self, frames: list[bytes]) -> bool:  # noqa: ARG002 - the plane's interface
        """False: this plane carries no messages."""
        return False

    def release(self, write: WriteChunk) -> None:
        """Give the slice's memory back. What a write that was given up may still read from it reaches only a tainted grant."""
        outgoing = self._outgoing.pop(write.write_id)
        self._committed.discard(write.write_id)
        if outgoing.transfer is not None:
            outgoing.transfer.abandon()
        self._arena.release(outgoing.offset, write.num_bytes)

    def close(self) -> None:
        """Forget the ring. No write of this session runs."""
        for outgoing in self._outgoing.values():
            if outgoing.transfer is not None:
                outgoing.transfer.abandon()
        self._link.close()


def register(initiator: Initiator, arena: Arena) -> None:
    """Let writes start from a rank's memory. Raises ``PlaneOpenError``."""
    try:
        initiator.register(arena.address, arena.num_bytes)
    except OneSidedError as error:
        raise PlaneOpenError(str(error)) from error


def open_one_sided(order: OpenPlane, initiator: Initiator, arena: Arena) -> OneSidedWriter:
    """Open what D describes. Any thread, and it may block. Raises ``PlaneOpenError``."""
    try:
        link = initiator.connect(order.region, order.ring_size)
    except OneSidedError as error:
        raise PlaneOpenError(str(error)) from error
    return OneSidedWriter(order.plane, link, arena)
