"""One session's open data plane: gathers slices in workers, hands them to the plane, and reports the end of every write.

start --> (waits for memory) --> worker: gather, checksum --> commit --> visible --> finished
                                      |                          |
                                      +--------- failed ---------+--- no progress for ``STALL_S``
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import xxhash

from prefill_service.gather import gather
from prefill_service.outputs import WriteChunk
from prefill_service.writers.base import RegionWriter
from protocol.layout import WriterSlice
from runtime.loop import EventLoop
from runtime.pool import KvPool
from runtime.workers import WorkerPool

STALL_S = 12.0
"""A handed-over write whose connection takes no byte for this long has failed. Longer than a default lease: a peer that is
merely stopped loses its session first."""
MEMORY_RETRY_S = 0.005
"""How soon a write that waits for memory looks again: nobody says when zmq lets go of a buffer."""


@dataclass(frozen=True, slots=True)
class Filled:
    """What a worker made: the bytes, and their checksum if one is wanted."""

    block: memoryview
    checksum: int | None


@dataclass(frozen=True, slots=True)
class WriteEnd:
    """How a write ended: with its bytes visible to the decode rank, or with a reason why not."""

    write: WriteChunk
    checksum: int | None = None
    failure: str | None = None


class SessionPlane:
    """Carries out the writes of one session. Loop thread only, except for what it gives to workers."""

    def __init__(
        self,
        writer: RegionWriter,
        layout: WriterSlice,
        pool: Callable[[], KvPool],
        loop: EventLoop,
        workers: WorkerPool,
        ended: Callable[[WriteEnd], None],
        *,
        checksums: bool,
        stall_s: float = STALL_S,
    ) -> None:
        self.writer = writer
        self._layout = layout
        self._pool = pool
        self._loop = loop
        self._workers = workers
        self._ended = ended
        self._checksums = checksums
        self._stall_s = stall_s
        self._waiting: deque[WriteChunk] = deque()
        self._committed: dict[int, tuple[WriteChunk, int | None]] = {}
        self._progress_at = 0.0
        self._looked_at = 0.0
        """When memory and writes were last looked at; a deadline counts from then, or it would never come."""
        self._closed = False

    def start(self, write: WriteChunk) -> None:
        """Begin a write, or let it wait for memory."""
        self._waiting.append(write)
        self.pump()

    def pump(self) -> None:
        """Begin what waits and has memory now."""
        self._looked_at = self._loop.clock()
        while self._waiting and self.writer.admits(self._waiting[0]):
            write = self._waiting.popleft()
            job = partial(_fill, self.writer, self._pool(), self._layout, write, checksums=self._checksums)
            self._workers.submit(job, partial(self._filled, write), partial(self._fill_failed, write))

    def send(self, frames: list[bytes]) -> bool:
        """Send a message behind the bytes. False if it was dropped."""
        sent = self.writer.send(frames)
        self._watch()
        return sent

    def next_deadline(self) -> float | None:
        """When ``tick`` has something to do."""
        waits = [MEMORY_RETRY_S] if self._waiting else []
        if self._committed and self.writer.poll_s is not None:
            waits.append(self.writer.poll_s)
        if waits:
            return self._looked_at + min(waits)
        return self._progress_at + self._stall_s if self._committed else None

    def tick(self, now: float) -> None:
        """Look for memory again, ask after writes that do not speak up, and give up those that do not move."""
        self.pump()
        if self._committed and self.writer.poll_s is not None:
            self._progress()
        if self._committed and now >= self._progress_at + self._stall_s:
            for write, _ in tuple(self._committed.values()):
                self._fail(write, f"the connection took no byte for {self._stall_s:g} s")

    def close(self) -> None:
        """Close the plane. No write of the session runs, or the process is about to end."""
        self._closed = True
        if self.writer.socket is not None:
            self._loop.remove_writer(self.writer.socket)
        self.writer.close()

    def _filled(self, write: WriteChunk, filled: Filled) -> None:
        if self._closed:
            return
        if self.writer.commit(write, filled.block):
            # Before anybody hears of the end, since that may close the plane: no view of ours may keep it mapped.
            filled.block.release()
            self._finish(write, filled.checksum)
            return
        if not self._committed:
            self._progress_at = self._loop.clock()
        self._committed[write.write_id] = (write, filled.checksum)
        self._progress()

    def _progress(self) -> None:
        self._looked_at = self._loop.clock()
        before = self.writer.handed_over
        finished = self.writer.progress()
        if self.writer.handed_over != before:
            self._progress_at = self._loop.clock()
        self._watch()
        for write_id in finished:
            write, checksum = self._committed.pop(write_id)
            self._finish(write, checksum)
        for failure in self.writer.take_failures():
            self._fail(self._committed[failure.write_id][0], failure.reason)

    def _watch(self) -> None:
        if self.writer.socket is None or self._closed:
            return
        if self.writer.unfinished:
            self._loop.add_writer(self.writer.socket, self._progress)
        else:
            self._loop.remove_writer(self.writer.socket)

    def _finish(self, write: WriteChunk, checksum: int | None) -> None:
        self.writer.release(write)
        self._ended(WriteEnd(write, checksum))

    def _fill_failed(self, write: WriteChunk, error: Exception) -> None:
        # The trace holds views of the plane's memory.
        error.__traceback__ = None
        if not self._closed:
            self._fail(write, f"{type(error).__name__}: {error}"[:200])

    def _fail(self, write: WriteChunk, reason: str) -> None:
        self._committed.pop(write.write_id, None)
        self.writer.release(write)
        self._ended(WriteEnd(write, failure=reason))


def _fill(writer: RegionWriter, pool: KvPool, layout: WriterSlice, write: WriteChunk, *, checksums: bool) -> Filled:
    """Gather one slice into its place. In a worker."""
    block = writer.acquire(write)
    gather(pool, layout, write.source, write.token_start, write.num_tokens, block)
    checksum = xxhash.xxh3_64_intdigest(block) if checksums else None
    writer.launch(write)
    return Filled(block, checksum)
