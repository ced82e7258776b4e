"""Ring memory that outlives nobody's mistakes: every byte written is checked against who may write it at that moment."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import xxhash

from protocol.layout import WriterKey


class ViolationError(AssertionError):
    """An invariant does not hold; the message says which, and for whom."""


@dataclass(slots=True, eq=False)
class RingMemory:
    """One epoch's bytes. ``may_write`` is asked before every partial write; a retired or dead epoch asks nobody."""

    key: str
    data: bytearray
    may_write: Callable[[int, int, int], str | None] | None = None
    """``(alloc_id, start, end) -> problem``; ``None`` once this is no longer the ring of a living decode rank."""
    lock_holders: set[str] = field(default_factory=set)
    """Sessions whose process maps this memory: the kernel locks of the ``shm`` plane."""
    abandoned_locks: set[str] = field(default_factory=set)
    """Sessions whose process died while it held its lock."""
    being_read: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Bytes of grants that are being scattered, by ``alloc_id``."""
    released: bool = False
    """Given back to the host: whoever still writes here by address hits somebody else."""

    def write(self, alloc_id: int, start: int, payload: bytes) -> None:
        """Write some bytes of a grant; raises ``ViolationError`` if they may belong to somebody else by now."""
        end = start + len(payload)
        problem = self.may_write(alloc_id, start, end) if self.may_write is not None else None
        if any(first < end and start < last for first, last in self.being_read.values()):
            problem = "these bytes are being scattered"
        if problem is not None:
            raise ViolationError(f"write of grant {alloc_id} to [{start}, {end}) of {self.key}: {problem}")
        self.data[start:end] = payload

    def write_by_address(self, alloc_id: int, start: int, payload: bytes) -> None:
        """The same from another host, where nothing protects memory that was given back."""
        if self.released:
            raise ViolationError(f"write of grant {alloc_id} from another host into {self.key}, which was given back")
        self.write(alloc_id, start, payload)

    def flip(self, at: int) -> None:
        """Corrupt one byte."""
        self.data[at] ^= 0x5A


def source_bytes(owner: str, room: str, chunk: int, writer: WriterKey, rank: int, num_bytes: int) -> bytes:
    """What a writer's slice of a chunk must contain, for one decode rank. ``owner`` names the life whose pages they are."""
    return Random(f"{owner} {room} {chunk} {writer} {rank}").randbytes(num_bytes)


def checksum_of(payload: bytes | bytearray | memoryview) -> int:
    """The slice checksum of the wire."""
    return xxhash.xxh3_64_intdigest(payload)
