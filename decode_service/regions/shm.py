"""The ``shm`` plane, decode half: writers on this host map the ring itself, and the kernel says when they are gone.

Every process that maps the segment for a session holds a lock on ``<segment>.<session>.lock`` while it does. So a session is
quiet exactly if nobody holds that lock: not if its process looks dead, and not because it has been silent for long.
"""

import os
from pathlib import Path

from decode_service.regions.base import Quietness
from decode_service.regions.memory import SharedRing
from protocol.messages import Descriptor
from runtime.locks import try_lock


class ShmPlane:
    """One named ring that writers of the same host may map."""

    name = "shm"
    two_sided = False

    def __init__(self, ring: SharedRing) -> None:
        self._ring = ring

    def descriptor(self) -> Descriptor:
        """The segment's file name; each side looks for it in its own ``shm_dir``."""
        return {"segment": self._ring.path.name}

    def quietness(self, session: str) -> Quietness:
        """Ask the kernel who holds the lock: a writer that closed its plane has removed the file, a dead one has not."""
        try:
            descriptor = os.open(self._lock_path(session), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return Quietness.CLOSED
        except OSError:
            return Quietness.NOT_PROVEN
        try:
            if not try_lock(descriptor):
                return Quietness.NOT_PROVEN
            # An unmarked file was created but never held: nothing was mapped.
            return Quietness.DIED if os.fstat(descriptor).st_size else Quietness.CLOSED
        finally:
            os.close(descriptor)

    def forget(self, session: str) -> None:
        """Remove the lock file that a killed writer left behind."""
        self._lock_path(session).unlink(missing_ok=True)

    def close(self) -> None:
        """Nothing is held beside the ring, which is closed by its owner."""

    def _lock_path(self, session: str) -> Path:
        return self._ring.path.with_name(f"{self._ring.path.name}.{session}.lock")
