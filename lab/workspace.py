"""The files of one run: sockets, KV pools, staging segments and logs in one private directory that goes away with the run.

It lies in shared memory, since the pools do. A run that was killed cannot remove its directory; the next run does, told
apart by the kernel lock that every living run holds on a file in its own.
"""

import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  every run makes a private directory in it
PREFIX = "pd-staging-lab-"
_LOCK = "lock"


class Workspace:
    """A private directory (0700) with ``runtime``, ``segments``, ``pools`` and ``logs``; removed on leaving the context."""

    def __init__(self, parent: Path = SHARED_MEMORY) -> None:
        remove_leftovers(parent)
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        self._lock: int | None = _locked(self.path / _LOCK)
        self.runtime = self._directory("runtime")
        self.segments = self._directory("segments")
        self.pools = self._directory("pools")
        self.logs = self._directory("logs")

    def _directory(self, name: str) -> Path:
        path = self.path / name
        path.mkdir(mode=0o700)
        return path

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.remove()

    def remove(self) -> None:
        """Remove the directory and everything in it. Repeating it changes nothing."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def remove_leftovers(parent: Path) -> list[Path]:
    """Remove the directories of this user's runs that no longer live; return them."""
    removed = [path for path in sorted(parent.glob(f"{PREFIX}*")) if _is_abandoned(path)]
    for path in removed:
        shutil.rmtree(path, ignore_errors=True)
    return removed


def _is_abandoned(path: Path) -> bool:
    """Whether this user's run at ``path`` is dead: its lock can be had. One that has no lock yet is only being made."""
    try:
        if path.stat().st_uid != os.getuid():
            return False
        descriptor = os.open(path / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def _locked(path: Path) -> int:
    """Create ``path`` already locked: it appears under its name only after the lock is held."""
    hidden = path.with_suffix(".new")
    descriptor = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    hidden.rename(path)
    return descriptor
