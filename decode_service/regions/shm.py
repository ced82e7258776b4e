"""The ``shm`` plane, decode half: writers on this host map the ring itself, and the kernel says when they are gone.

Every process that maps the segment for a session holds a lock on ``<segment>.<session>.lock`` while it does. So a session is
quiet exactly if nobody holds that lock: not if its process looks dead, and not because it has been silent for long.
"""

import os
from pathlib import Path

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

    def is_quiet(self, session: str) -> bool:
        """True if no process maps the ring for this session: its lock file does not exist, or nobody holds its lock."""
        try:
            descriptor = os.open(self._lock_path(session), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        try:
            return try_lock(descriptor)
        finally:
            os.close(descriptor)

    def forget(self, session: str) -> None:
        """Remove the lock file that a killed writer left behind."""
        self._lock_path(session).unlink(missing_ok=True)

    def close(self) -> None:
        """Nothing is held beside the ring, which is closed by its owner."""

    def _lock_path(self, session: str) -> Path:
        return self._ring.path.with_name(f"{self._ring.path.name}.{session}.lock")
