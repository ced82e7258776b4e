"""Writes of one session: they wait for memory, end exactly once, and never hang on a connection that takes nothing."""

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from prefill_service.outputs import WriteChunk
from prefill_service.session_plane import STALL_S, SessionPlane, WriteEnd
from prefill_service.writers.buffers import SendBuffers
from prefill_service.writers.zmq import ZmqWriter
from protocol.layout import PageRun, writer_slice
from runtime.endpoint import Context, open_context
from runtime.loop import EventLoop
from runtime.workers import WorkerPool
from tests.unit.embedded import LAYOUT, PAGE_SIZE, RUN, TOKEN_BYTES, private_pool

CHUNK_BYTES = 8 * TOKEN_BYTES


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """The time it was set to."""
        return self.now


class Bench:
    """A session plane whose peer does not exist, so that nothing it hands over ever leaves."""

    def __init__(self, context: Context) -> None:
        self.clock = Clock()
        self.loop = EventLoop(self.clock)
        self.workers = WorkerPool(self.loop, 1, "worker")
        self.ends: list[WriteEnd] = []
        self.buffers = SendBuffers(CHUNK_BYTES)
        writer = ZmqWriter(context, {"host": "", "port": 1, "piece_bytes": 4096}, "127.0.0.1", self.buffers)
        pool, layout = private_pool(seed=1), writer_slice(LAYOUT, LAYOUT)
        self.plane = SessionPlane(writer, layout, lambda: pool, self.loop, self.workers, self.ends.append, checksums=True)

    def turn_until_idle(self) -> None:
        """Let the loop deliver what workers have done."""
        while self.workers.outstanding:
            self.loop.turn(1.0)

    def fill_memory(self) -> float:
        """Start two writes, of which the second one waits for memory; when it looks for some again."""
        self.plane.start(write(1))
        self.plane.start(write(2))
        self.turn_until_idle()
        deadline = self.plane.next_deadline()
        assert deadline is not None
        return deadline

    def close(self) -> None:
        """Close everything."""
        self.plane.close()
        self.workers.close()
        self.loop.close()


@pytest.fixture
def bench() -> Iterator[Bench]:
    """A bench whose sockets are closed at the end."""
    context = open_context(1, 16)
    made = Bench(context)
    yield made
    made.close()
    context.term()


def write(write_id: int, source: PageRun = RUN) -> WriteChunk:
    """A write of the first eight tokens."""
    return WriteChunk(write_id, "peer", "s", "room", 0, 1, 1, 0, 8, source, 0, CHUNK_BYTES)


def test_a_connection_that_takes_nothing_fails_its_writes(bench: Bench) -> None:
    """After ``STALL_S`` without a byte the write fails with that reason, and its memory serves the next one."""
    bench.plane.start(write(1))
    bench.turn_until_idle()
    deadline = bench.plane.next_deadline()
    assert deadline == STALL_S
    bench.plane.tick(STALL_S - 1)
    assert bench.ends == []
    bench.plane.tick(STALL_S)
    assert [(end.write.write_id, "no byte" in (end.failure or "")) for end in bench.ends] == [(1, True)]
    assert bench.plane.next_deadline() is None
    bench.plane.start(write(2))
    bench.turn_until_idle()
    assert bench.plane.next_deadline() is not None


def test_a_write_waits_for_memory(bench: Bench) -> None:
    """A second slice that finds no memory waits, looks again soon, and begins when the first one has ended."""
    assert bench.fill_memory() < STALL_S
    bench.plane.tick(STALL_S)
    bench.clock.now = STALL_S
    bench.plane.tick(STALL_S)
    bench.turn_until_idle()
    bench.plane.tick(3 * STALL_S)
    assert [end.write.write_id for end in bench.ends] == [1, 2]


def test_what_waits_is_looked_at_by_the_loop_itself(bench: Bench) -> None:
    """The moment at which a waiting write looks for memory again comes nearer as time passes: the loop reaches it."""
    deadline = bench.fill_memory()
    bench.clock.now = deadline
    assert bench.plane.next_deadline() == deadline
    bench.plane.tick(deadline)
    assert (bench.plane.next_deadline() or 0.0) > deadline


def test_a_gather_that_fails_ends_its_write(bench: Bench) -> None:
    """Pages that do not hold the tokens end the write with the reason."""
    bench.plane.start(write(1, PageRun((0,))))
    bench.turn_until_idle()
    assert [end.write.write_id for end in bench.ends] == [1]
    assert "PageRunError" in (bench.ends[0].failure or "")
    assert PAGE_SIZE < 8


def test_nothing_is_reported_after_the_close(bench: Bench) -> None:
    """What a worker finishes after the session's end reaches nobody."""
    gate = threading.Event()
    bench.workers.submit(gate.wait, lambda _: None, lambda error: pytest.fail(str(error)))
    bench.plane.start(write(1))
    bench.plane.close()
    gate.set()
    bench.turn_until_idle()
    assert bench.ends == []


def test_the_slice_is_gathered_into_its_buffer(bench: Bench) -> None:
    """What waits to be sent is the staged form of the pages."""
    bench.plane.start(write(1))
    bench.turn_until_idle()
    block = np.frombuffer(bench.plane.writer.acquire(write(3)), np.uint8)
    assert block.nbytes == CHUNK_BYTES
