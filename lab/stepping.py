"""A gather that stops in the middle of its copy until it is told to go on: how a scenario is certain of *when* a fault strikes.

Both ends meet at two named pipes in one directory. The daemon's end writes ``h`` when half of a slice lies in the staging ring,
waits for one byte, and writes ``d`` when the other half lies there too::

    laboratory  <--- notes: h, d ---  prefill daemon
                ---  go: one byte per copy --->

The product has no such gather; ``lab/stepped_daemon.py`` puts it in the place of its own.
"""

import contextlib
import os
from collections import Counter
from pathlib import Path

from lab.chaos.expectations import until
from prefill_service.gather import gather
from protocol.layout import PageRun, WriterSlice
from runtime.pool import KvPool

HALF, DONE = "h", "d"
_NOTES, _GO = "notes", "go"
_PLENTY = 16_384
"""More copies than any scenario makes; fewer bytes than a pipe holds."""


class SteppedGather:
    """The daemon's end. Called by worker threads like the product's gather, and gives the same bytes."""

    def __init__(self, directory: Path) -> None:
        self._notes = os.open(directory / _NOTES, os.O_WRONLY | os.O_CLOEXEC)
        self._go = os.open(directory / _GO, os.O_RDONLY | os.O_CLOEXEC)

    def __call__(
        self, pool: KvPool, writer: WriterSlice, source: PageRun, token_start: int, num_tokens: int, out: memoryview
    ) -> None:
        """Copy one half, say so, wait, copy the other half, say so."""
        slice_bytes = memoryview(bytearray(out.nbytes))
        gather(pool, writer, source, token_start, num_tokens, slice_bytes)
        half = out.nbytes // 2
        out[:half] = slice_bytes[:half]
        os.write(self._notes, HALF.encode())
        os.read(self._go, 1)
        out[half:] = slice_bytes[half:]
        os.write(self._notes, DONE.encode())

    def close(self) -> None:
        """Close both pipes; a daemon leaves that to its end."""
        os.close(self._notes)
        os.close(self._go)


class CopySteps:
    """The laboratory's end. Make it before the daemon starts; close it after the daemon has ended."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(mode=0o700)
        for name in (_NOTES, _GO):
            os.mkfifo(directory / name, 0o600)
        # Both ways, so that opening does not wait for the daemon and its restarts do not end the pipe.
        self._notes = os.open(directory / _NOTES, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._go = os.open(directory / _GO, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._seen: Counter[str] = Counter()

    def seen(self, note: str) -> int:
        """How many copies have said ``HALF`` or ``DONE`` so far."""
        with contextlib.suppress(BlockingIOError):
            self._seen.update(os.read(self._notes, _PLENTY).decode())
        return self._seen[note]

    async def until(self, note: str, count: int, limit_s: float, what: str) -> None:
        """Wait until ``count`` copies have said so. Raises ``NotAsExpected`` after ``limit_s`` seconds."""

        async def said() -> bool:
            return self.seen(note) >= count

        await until(limit_s, what, said)

    def go(self, copies: int = _PLENTY) -> None:
        """Let so many copies go on when they get there; without a number all that will ever come."""
        os.write(self._go, bytes(copies))

    def close(self) -> None:
        """Close both pipes."""
        os.close(self._notes)
        os.close(self._go)
