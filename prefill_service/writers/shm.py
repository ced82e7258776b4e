"""The ``shm`` plane, prefill half: the gather writes straight into the decode rank's ring.

Before the ring is mapped a lock file for the session is created and locked, and it stays locked until the ring is unmapped:
that lock is what lets the decode rank prove that nobody can write for this session any more, however this process ends.
"""

import mmap
import os
import re
from pathlib import Path

from prefill_service.outputs import WriteChunk
from prefill_service.writers.base import PlaneOpenError, WriteFailure
from protocol.identifiers import is_name
from protocol.messages import Descriptor
from runtime.locks import FileLock, is_path_of

_SEGMENT = re.compile(r"pd-staging-[A-Za-z0-9._:-]{1,128}-[0-9a-f]{16}")


class ShmWriter:
    """One session's mapping of one ring."""

    name = "shm"
    socket = None
    unfinished = False
    poll_s = None
    handed_over = 0

    def __init__(self, directory: Path, region: Descriptor, session: str, ring_size: int) -> None:
        segment = region.get("segment")
        if not isinstance(segment, str) or _SEGMENT.fullmatch(segment) is None:
            raise PlaneOpenError(f"segment: expected the name of a staging segment, not {segment!r}")
        if not is_name(session):
            raise PlaneOpenError(f"session: {session!r} cannot be part of a file name")
        path = directory / segment
        descriptor = _open_segment(path, ring_size)
        try:
            self._lock = _lock_session(path, session)
            self._mapping = _map_locked(path, descriptor, ring_size, self._lock)
        finally:
            os.close(descriptor)
        self._ring = memoryview(self._mapping)

    def admits(self, write: WriteChunk) -> bool:  # noqa: ARG002 - the plane's interface
        """Always: the slice's place is in the ring already."""
        return True

    def acquire(self, write: WriteChunk) -> memoryview:
        """The slice's own bytes of the ring. Any thread."""
        return self._ring[write.offset : write.offset + write.num_bytes]

    def launch(self, write: WriteChunk) -> None:
        """Nothing is left to be moved."""

    def commit(self, write: WriteChunk, filled: memoryview) -> bool:  # noqa: ARG002 - the plane's interface
        """True: the decode rank maps the same memory."""
        return True

    def progress(self) -> tuple[int, ...]:
        """Nothing is ever unfinished."""
        return ()

    def take_failures(self) -> tuple[WriteFailure, ...]:
        """None: there is nothing that could fail."""
        return ()

    def send(self, frames: list[bytes]) -> bool:  # noqa: ARG002 - the plane's interface
        """False: this plane carries no messages."""
        return False

    def release(self, write: WriteChunk) -> None:
        """Nothing is held for a write."""

    def close(self) -> None:
        """Unmap, then give the lock up. While a copy still looks at the ring both stay: the lock must not lie."""
        try:
            self._ring.release()
            self._mapping.close()
        except BufferError:
            return
        self._lock.close()


def _open_segment(path: Path, ring_size: int) -> int:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        raise PlaneOpenError(f"{path}: {error.strerror}; is this the decode rank's host, and shm_dir the same?") from error
    size = os.fstat(descriptor).st_size
    if size != ring_size:
        os.close(descriptor)
        raise PlaneOpenError(f"{path}: expected {ring_size} bytes, found {size}")
    return descriptor


def _lock_session(path: Path, session: str) -> FileLock:
    lock_path = path.with_name(f"{path.name}.{session}.lock")
    try:
        lock = FileLock.take(lock_path)
    except OSError as error:
        raise PlaneOpenError(f"{lock_path}: {error.strerror}") from error
    if lock is None:
        raise PlaneOpenError(f"{lock_path}: another process holds this session's lock")
    return lock


def _map_locked(path: Path, descriptor: int, ring_size: int, lock: FileLock) -> mmap.mmap:
    # Looked up only now: whoever asked for quiet before our lock existed may have removed the segment since.
    problem = f"{path}: the decode rank has replaced this region"
    try:
        if is_path_of(descriptor, path):
            lock.mark()
            return mmap.mmap(descriptor, ring_size, flags=mmap.MAP_SHARED)
    except OSError as error:
        problem = f"{path}: {error.strerror}"
    lock.close()
    raise PlaneOpenError(problem)
