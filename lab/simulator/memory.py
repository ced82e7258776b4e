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
    """``(alloc_id, start, end) -> problem``; ``None`` once nobody scatters from this memory any more."""
    lock_holders: set[str] = field(default_factory=set)
    """Sessions whose process maps this memory: the kernel locks of the ``shm`` plane."""
    abandoned_locks: set[str] = field(default_factory=set)
    """Sessions whose process died while it held its lock."""

    def write(self, alloc_id: int, start: int, payload: bytes) -> None:
        """Write some bytes of a grant; raises ``ViolationError`` if they may belong to somebody else by now."""
        problem = self.may_write(alloc_id, start, start + len(payload)) if self.may_write is not None else None
        if problem is not None:
            raise ViolationError(f"write of grant {alloc_id} to [{start}, {start + len(payload)}) of {self.key}: {problem}")
        self.data[start : start + len(payload)] = payload

    def flip(self, at: int) -> None:
        """Corrupt one byte."""
        self.data[at] ^= 0x5A


def source_bytes(owner: str, room: str, chunk: int, writer: WriterKey, rank: int, num_bytes: int) -> bytes:
    """What a writer's slice of a chunk must contain, for one decode rank. ``owner`` names the life whose pages they are."""
    return Random(f"{owner} {room} {chunk} {writer} {rank}").randbytes(num_bytes)


def checksum_of(payload: bytes | bytearray | memoryview) -> int:
    """The slice checksum of the wire."""
    return xxhash.xxh3_64_intdigest(payload)
