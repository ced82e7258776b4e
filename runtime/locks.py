"""Kernel locks on files: the only sign of a living process that holds across forks, containers and process-id namespaces.

The kernel drops an ``flock`` when the last descriptor of its open file is closed, which includes every way a process can die.
"""

import fcntl
import os
from pathlib import Path


def try_lock(descriptor: int) -> bool:
    """Lock the open file exclusively without waiting; false if any other open file of it holds a lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_path_of(descriptor: int, path: Path) -> bool:
    """Say whether ``path`` still names the open file, and not nothing or a later file of the same name."""
    try:
        named = path.lstat()
    except FileNotFoundError:
        return False
    opened = os.fstat(descriptor)
    return (named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino)


class FileLock:
    """A file that is locked while this object is open. Made by ``take``; ``close`` removes the file and frees the lock."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor: int | None = descriptor

    @classmethod
    def take(cls, path: Path) -> "FileLock | None":
        """Create the file with mode 0600 and lock it; ``None`` if somebody who lives holds it. Raises ``OSError``."""
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            if not try_lock(descriptor):
                os.close(descriptor)
                return None
            if is_path_of(descriptor, path):
                return cls(path, descriptor)
            # The former holder removed the file between our open and our lock: what we hold has no name any more.
            os.close(descriptor)

    def mark(self) -> None:
        """Note in the file that its lock was really held: a free lock on a marked file means that its holder died."""
        assert self._descriptor is not None
        os.write(self._descriptor, b"%d\n" % os.getpid())

    def close(self) -> None:
        """Remove the file, then free the lock: in this order nobody locks a file that is about to lose its name."""
        if self._descriptor is None:
            return
        descriptor, self._descriptor = self._descriptor, None
        if is_path_of(descriptor, self.path):
            self.path.unlink(missing_ok=True)
        os.close(descriptor)
