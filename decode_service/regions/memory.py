"""The staging ring's memory: anonymous where this process does every write, a named file where writers map it.

Segment names are ``pd-staging-<decode_id>-<epoch as 16 hex digits>``. The owner holds a kernel lock on its segment for life, so
a later life of the same ``decode_id`` can tell a leftover of a killed process from memory in use, and remove it.
"""

import errno
import mmap
import os
import re
from pathlib import Path

import numpy as np

from runtime.errors import StartError
from runtime.locks import try_lock

PREFIX = "pd-staging"
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EFBIG)


def segment_name(decode_id: str, epoch: int) -> str:
    """The file name of one epoch of one decode rank's ring."""
    return f"{PREFIX}-{decode_id}-{epoch:016x}"


def copy_into(ring: memoryview, offset: int, payload: memoryview) -> None:
    """Copy a piece of payload to byte ``offset`` of the ring, without holding the interpreter lock."""
    place = np.frombuffer(ring[offset : offset + payload.nbytes], dtype=np.uint8)
    np.copyto(place, np.frombuffer(payload, dtype=np.uint8))


def _close_mapping(mapping: mmap.mmap, buffer: memoryview) -> None:
    try:
        buffer.release()
        mapping.close()
    except BufferError:
        # A copy still looks at the memory. The mapping ends with the last view of it, and its name is gone already.
        return


class AnonymousRing:
    """Private memory that no other process can reach."""

    def __init__(self, size: int) -> None:
        try:
            self._mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise StartError(
                f"allocate a ring of {size} bytes", str(error), "lower ring_bytes or give the process more memory"
            ) from error
        self._buffer = memoryview(self._mapping)

    @property
    def buffer(self) -> memoryview:
        """The whole ring as writable unsigned bytes."""
        return self._buffer

    def close(self) -> None:
        """Unmap the memory."""
        _close_mapping(self._mapping, self._buffer)


class SharedRing:
    """A named file in shared memory, fully allocated, mode 0600, locked by its owner while this object is open."""

    def __init__(self, directory: Path, name: str, size: int) -> None:
        self.path = directory / name
        self._descriptor = self._create(size)
        try:
            self._allocate(size)
            self._mapping = mmap.mmap(self._descriptor, size, flags=mmap.MAP_SHARED)
        except OSError as error:
            self._remove()
            raise self._start_error(size, error) from error
        self._buffer = memoryview(self._mapping)

    @property
    def buffer(self) -> memoryview:
        """The whole ring as writable unsigned bytes."""
        return self._buffer

    def close(self) -> None:
        """Unmap the memory and remove its name. Whoever else maps it keeps a harmless mapping of nothing we own."""
        self._remove()
        _close_mapping(self._mapping, self._buffer)

    def _create(self, size: int) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            descriptor = os.open(self.path, flags, 0o600)
        except OSError as error:
            raise self._start_error(size, error) from error
        if not try_lock(descriptor):
            os.close(descriptor)
            raise self._start_error(size, OSError(errno.EBUSY, "somebody locked the new segment at once"))
        return descriptor

    def _allocate(self, size: int) -> None:
        # Not ftruncate: a sparse file in a full tmpfs would kill whoever touches it (SIGBUS) instead of failing here.
        os.posix_fallocate(self._descriptor, 0, size)

    def _remove(self) -> None:
        self.path.unlink(missing_ok=True)
        os.close(self._descriptor)

    def _start_error(self, size: int, error: OSError) -> StartError:
        wanted = f"allocate a ring of {size} bytes at {self.path}"
        if error.errno in _DISK_FULL:
            return StartError(
                wanted,
                f"{self.path.parent} is full ({_free_bytes(self.path.parent)} bytes are free)",
                "lower ring_bytes, remove leftovers, or enlarge it (containers: --shm-size)",
            )
        return StartError(
            wanted, error.strerror or str(error), "set shm_dir to a directory of a tmpfs that this user may write"
        )


def _free_bytes(directory: Path) -> int:
    status = os.statvfs(directory)
    return status.f_bavail * status.f_frsize


def sweep_segments(directory: Path, decode_id: str) -> tuple[str, ...]:
    """Remove what dead owners of ``decode_id`` left in ``directory``, and return the names of the removed segments.

    A segment whose owner lives is left alone. A writer that still maps a removed one keeps a mapping that nobody reads.
    """
    mine = re.compile(re.escape(f"{PREFIX}-{decode_id}-") + "[0-9a-f]{16}")
    try:
        found = sorted(entry.name for entry in os.scandir(directory))
    except FileNotFoundError:
        return ()
    segments = [name for name in found if mine.fullmatch(name)]
    removed = tuple(name for name in segments if _remove_unowned(directory / name))
    kept = set(segments) - set(removed)
    for name in found:
        segment = mine.match(name)
        if segment is not None and name.endswith(".lock") and segment.group() not in kept:
            (directory / name).unlink(missing_ok=True)
    return removed


def _remove_unowned(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        if not try_lock(descriptor):
            return False
        path.unlink(missing_ok=True)
        return True
    finally:
        os.close(descriptor)
