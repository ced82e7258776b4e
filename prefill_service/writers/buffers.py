"""Memory for slices on their way to a socket: bounded, reused, and never reused while zmq still reads it."""

import threading
from collections.abc import Sequence

import numpy as np
import zmq

MAX_FREE = 8
"""Buffers kept for reuse; slices of one layout have few sizes."""


class SendBuffers:
    """Buffers of one prefill rank. ``reserve`` and ``release`` belong to the loop's thread, ``acquire`` to any."""

    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._guard = threading.Lock()
        self._free: list[memoryview] = []
        self._in_use = 0
        self._draining: list[tuple[memoryview, Sequence[zmq.MessageTracker]]] = []

    def reserve(self, num_bytes: int) -> bool:
        """Count ``num_bytes`` against the budget, or say that it is used up. One slice of any size always has its turn."""
        self._collect()
        if self._in_use and self._in_use + num_bytes > self._budget_bytes:
            return False
        self._in_use += num_bytes
        return True

    def acquire(self, num_bytes: int) -> memoryview:
        """A writable buffer of exactly that many bytes, reserved before; its contents are arbitrary."""
        with self._guard:
            for index, buffer in enumerate(self._free):
                if buffer.nbytes == num_bytes:
                    return self._free.pop(index)
        return np.empty(num_bytes, dtype=np.uint8).data

    def release(self, buffer: memoryview | None, num_bytes: int, readers: Sequence[zmq.MessageTracker]) -> None:
        """Take a buffer back once none of ``readers`` reads it any more."""
        if buffer is None:
            self._in_use -= num_bytes
            return
        self._draining.append((buffer, readers))
        self._collect()

    def _collect(self) -> None:
        draining, self._draining = self._draining, []
        for buffer, readers in draining:
            if not all(reader.done for reader in readers):
                self._draining.append((buffer, readers))
                continue
            self._in_use -= buffer.nbytes
            with self._guard:
                self._free.append(buffer)
                del self._free[:-MAX_FREE]
