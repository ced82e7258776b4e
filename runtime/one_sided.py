"""One-sided writes between processes: what a data plane needs of NIXL, of Mooncake, or of whatever comes next.

A *target* registers memory once and describes it. An *initiator* registers its own memory once, opens descriptions, and writes.
Three things are true of every such engine and shape everything that is built on it (each was measured on the real ones):

1. Only a completion that the engine reports says anything. A write that failed, timed out or was given up, or whose sender was
   killed, may still land, in whole or in part, at any later time.
2. Deregistering memory revokes nothing. Memory that a writer was told of is safe only once it is never used again.
3. No engine bounds its waits. Whoever starts a transfer must give it up by a clock of his own.
"""

from collections.abc import Mapping
from typing import Protocol

import numpy as np

RegionDescriptor = Mapping[str, int | str | bytes]
"""What travels to an initiator; its keys are the engine's own."""


class OneSidedError(Exception):
    """The engine cannot do what was asked. The message says what and why; a write that ended so may still land."""


class Transfer(Protocol):
    """One write that was started."""

    def is_done(self) -> bool:
        """Whether its bytes are in the target's memory. Raises ``OneSidedError`` if it failed. Not asked after its end."""

    def abandon(self) -> None:
        """Ask for it no more. Its bytes may land all the same."""


class Link(Protocol):
    """An opened description of a target's memory."""

    def start(self, address: int, offset: int, num_bytes: int) -> Transfer:
        """Write from our registered ``address`` to byte ``offset`` over there. Any thread. Raises ``OneSidedError``."""

    def close(self) -> None:
        """Forget the target. Nothing that was started is thereby undone."""


class Initiator(Protocol):
    """This process as a writer. Its registered memory must outlive it."""

    def register(self, address: int, num_bytes: int) -> None:
        """Let writes start from this memory. Once per memory. Raises ``OneSidedError``."""

    def connect(self, region: RegionDescriptor, num_bytes: int) -> Link:
        """Open a description of ``num_bytes`` bytes. May block for as long as the engine likes. Raises ``OneSidedError``."""

    def close(self) -> None:
        """End the engine's threads and connections."""


class Target(Protocol):
    """Memory of this process that others may write."""

    def descriptor(self) -> RegionDescriptor:
        """What an initiator needs."""

    def close(self) -> None:
        """End the engine's threads and connections; only then may the memory be unmapped."""


def address_of(buffer: memoryview) -> int:
    """Where a writable buffer lies in this process."""
    return int(np.frombuffer(buffer, dtype=np.uint8).ctypes.data)


def described_memory(region: RegionDescriptor, num_bytes: int) -> int:
    """The address in a description of exactly ``num_bytes`` bytes. Raises ``OneSidedError`` that names the field."""
    address, length = region.get("address"), region.get("num_bytes")
    if length != num_bytes:
        raise OneSidedError(f"num_bytes: expected {num_bytes}, not {length!r}")
    if not isinstance(address, int) or not 0 < address < (1 << 63) - num_bytes:
        raise OneSidedError(f"address: expected one in user space, not {address!r}")
    return address
