"""KV pools: an engine's pages in named shared memory, or over memory that the engine already owns.

A pool file is plain: no header, no tracker process, nothing that unlinks it behind its owner's back. The one who creates it
allocates every byte at once (a full ``/dev/shm`` is an error now rather than a SIGBUS later) and removes it; others open it by
its descriptor, which carries the layout.
"""

import errno
import mmap
import os
import stat
from collections.abc import Callable, Hashable
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from protocol.layout import local_heads
from runtime.array_memory import UnusableMemory, bytes_of
from runtime.pool_descriptor import PoolDescriptor
from runtime.pool_layout import PoolError, PoolLayout, PoolTensor, validate_pool_layout

Bytes = NDArray[np.uint8]
P = TypeVar("P")

_MAX_PLANS = 4096


class KvPool:
    """A rank's KV pages as strided arrays. Views stay valid after ``close``: the memory goes when the last of them goes.

    ``compiled_copies`` (set before the first copy) lets a compiled loop move short rows: see ``runtime.compiled_copies``.
    """

    compiled_copies = False

    def __init__(self, memory: Bytes, layout: PoolLayout, path: Path | None = None) -> None:
        self.layout = layout
        self.path = path
        self._memory: Bytes | None = memory
        self._places: dict[tuple[int, int], PoolTensor] = {(place.layer, place.tensor): place for place in layout.tensors}
        self._plans: dict[Hashable, tuple[object, object]] = {}

    @classmethod
    def create(cls, path: Path | str, layout: PoolLayout) -> Self:
        """Make the file (mode 0600, zeroed, fully allocated) and map it. Raises ``PoolError`` and then leaves no file."""
        validate_pool_layout(layout)
        path = Path(path).absolute()
        fd = _open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            _allocate(fd, path, layout.total_bytes)
            return cls(_map(fd, layout.total_bytes, writable=True), layout, path)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)

    @classmethod
    def open(cls, descriptor: PoolDescriptor, *, writable: bool = True) -> Self:
        """Map the file that ``descriptor`` names. Raises ``PoolError`` listing all that does not fit."""
        layout = descriptor.layout
        validate_pool_layout(layout)
        path = Path(descriptor.path)
        fd = _open(path, os.O_RDWR if writable else os.O_RDONLY)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise PoolError([f"{path} is not a regular file"])
            if status.st_size < layout.total_bytes:
                raise PoolError([f"{path} has {status.st_size} bytes, its layout needs {layout.total_bytes}"])
            return cls(_map(fd, layout.total_bytes, writable=writable), layout, path)
        finally:
            os.close(fd)

    @classmethod
    def over(cls, buffer: object, layout: PoolLayout) -> Self:
        """Use memory that the engine owns: a contiguous buffer, or a DLPack tensor in host memory. Raises ``PoolError``."""
        validate_pool_layout(layout)
        try:
            memory = bytes_of(buffer)
        except UnusableMemory as error:
            raise PoolError([f"{error}; the layout needs {layout.total_bytes} contiguous bytes"]) from error
        if memory.nbytes < layout.total_bytes:
            raise PoolError([f"buffer has {memory.nbytes} bytes; its layout needs {layout.total_bytes} contiguous bytes"])
        return cls(memory, layout)

    @property
    def descriptor(self) -> PoolDescriptor:
        """What another process opens this pool with. Raises ``PoolError`` for a pool without a file."""
        if self.path is None:
            raise PoolError(["this pool lies in private memory: no other process can open it"])
        return PoolDescriptor(str(self.path), self.layout)

    @property
    def memory(self) -> Bytes:
        """Every byte of the pool. Raises ``PoolError`` once it is closed."""
        if self._memory is None:
            raise PoolError(["the pool is closed"])
        return self._memory

    def place(self, layer: int, tensor: int) -> PoolTensor:
        """Where this tensor lies. Raises ``PoolError`` if this rank does not hold it."""
        found = self._places.get((layer, tensor))
        if found is None:
            raise PoolError([f"layer {layer} tensor {tensor} is not in this pool"])
        return found

    def view(self, layer: int, tensor: int) -> Bytes:
        """The tensor's bytes, shape ``[pages, page_size, heads, width]``, not copied; ``layer`` is the global index."""
        place, layout = self.place(layer, tensor), self.layout
        spec = layout.spec(place)
        shape = (layout.num_pages, layout.page_size, local_heads(spec, layout.rank.tp_size), spec.width)
        strides = (place.page_stride, place.token_stride, place.head_stride, 1)
        return np.ndarray(shape, np.uint8, self.memory.data, place.offset, strides)

    def plan(self, use: Hashable, key: object, make: Callable[[], P]) -> P:
        """What ``make`` made for this very ``key`` object, kept while the pool is open so that it is made once."""
        slot = (use, id(key))
        known = self._plans.get(slot)
        if known is None:
            while len(self._plans) >= _MAX_PLANS:
                self._plans.pop(next(iter(self._plans)), None)
            known = self._plans[slot] = (key, make())
        return cast(P, known[1])

    def close(self) -> None:
        """Let go of the memory; copies that run elsewhere finish first, on their own views. The file stays."""
        self._plans.clear()
        self._memory = None

    def unlink(self) -> None:
        """Remove the file; mappings of it live on. For the one who created it."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _open(path: Path, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except OSError as error:
        hint = "; remove it if no engine uses it" if error.errno == errno.EEXIST else ""
        raise PoolError([f"cannot open KV pool {path}: {error.strerror}{hint}"]) from error


def _allocate(fd: int, path: Path, size: int) -> None:
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        room = os.fstatvfs(fd)
        free = room.f_bavail * room.f_frsize
        raise PoolError([f"cannot allocate {size} bytes for KV pool {path}: {error.strerror} ({free} bytes free)"]) from error


def _map(fd: int, size: int, *, writable: bool) -> Bytes:
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    return np.frombuffer(mmap.mmap(fd, size, flags=mmap.MAP_SHARED, prot=protection), np.uint8)
