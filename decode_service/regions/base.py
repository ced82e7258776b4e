"""The decode half of a data plane: who owns the ring's memory and how a writer finds it."""

from enum import Enum
from typing import Protocol

from protocol.messages import Descriptor


class RingMemory(Protocol):
    """One epoch of staging memory of a fixed size. Closed exactly once; views must be released first."""

    @property
    def buffer(self) -> memoryview:
        """The whole ring as writable unsigned bytes."""

    def close(self) -> None:
        """Unmap and remove the memory. Whoever else maps it keeps a harmless mapping of nothing we own."""


class Quietness(Enum):
    """What is known about a session's writers."""

    NOT_PROVEN = "not_proven"
    """Some process may still write, now or when it wakes up."""
    CLOSED = "closed"
    """No process can write for this session; its process may well live."""
    DIED = "died"
    """No process can write: the one that could has died, and what it held is gone with it."""


class Plane(Protocol):
    """One way for a writer to reach a ring."""

    name: str
    two_sided: bool
    """True if this side performs every write itself, so that refusing a session is proof that it is quiet."""

    def descriptor(self) -> Descriptor:
        """What a writer needs to open this plane; travels in ``SUBSCRIBED.region``."""

    def quietness(self, session: str) -> Quietness:
        """Say whether it is *proven* that no process of this session can write, and whether by its death."""

    def forget(self, session: str) -> None:
        """Drop what is kept for a session that is over and quiet."""

    def close(self) -> None:
        """Release sockets and files of this plane."""
