"""The pair of halves of each data plane behind one face, so that one suite can hold both to the same promises."""

from pathlib import Path

import pytest
import zmq

from decode_service.regions.memory import AnonymousRing, SharedRing, copy_into, segment_name
from decode_service.regions.shm import ShmPlane
from decode_service.regions.zmq import Piece, ZmqPlane
from prefill_service.outputs import WriteChunk
from prefill_service.writers.base import RegionWriter
from prefill_service.writers.buffers import SendBuffers
from prefill_service.writers.shm import ShmWriter
from prefill_service.writers.zmq import ZmqWriter
from protocol.codec import encode
from protocol.layout import PageRun
from protocol.messages import ChunkReady, Descriptor, ToDecode

RING_BYTES = 1 << 16
PIECE_BYTES = 4096
SESSION = "session-a"
WAIT_MS = 10_000


def write_of(write_id: int, offset: int, num_bytes: int) -> WriteChunk:
    """A write of ``num_bytes`` at ``offset`` of the ring; everything a plane does not look at is fixed."""
    return WriteChunk(write_id, "peer", SESSION, "room", write_id, write_id, 1, 0, 1, PageRun((0,)), offset, num_bytes)


def ready_of(write: WriteChunk) -> ChunkReady:
    """The completion of that write."""
    return ChunkReady(SESSION, write.room, write.chunk, write.alloc_id, write.attempt, write.num_bytes, None)


class Pair:
    """A ring, the plane that offers it, and the writer that a test opens on it."""

    ring: AnonymousRing | SharedRing
    plane: ShmPlane | ZmqPlane

    def open_writer(self, region: Descriptor | None = None) -> RegionWriter:
        """Open the descriptor (by default the plane's own) as a prefill would."""
        raise NotImplementedError

    def settle(self, writer: RegionWriter, writes: dict[int, WriteChunk]) -> list[ToDecode]:
        """Let both halves do what their loops would until the ``CHUNK_READY`` of every write has arrived."""
        raise NotImplementedError

    def close(self) -> None:
        """Close plane and ring."""
        self.plane.close()
        self.ring.close()


class ShmPair(Pair):
    """The ``shm`` plane over a directory of the test's own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ring = SharedRing(directory, segment_name("decode-0", 7), RING_BYTES)
        self.plane = ShmPlane(self.ring)

    def open_writer(self, region: Descriptor | None = None) -> RegionWriter:
        """Map the ring."""
        return ShmWriter(self.directory, region or self.plane.descriptor(), SESSION, RING_BYTES)

    def settle(self, writer: RegionWriter, writes: dict[int, WriteChunk]) -> list[ToDecode]:
        """Commits are visible at once, and completions travel elsewhere."""
        assert writer.progress() == ()
        return [ready_of(write) for write in writes.values()]


class ZmqPair(Pair):
    """The ``zmq`` plane over a loopback socket."""

    plane: ZmqPlane

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]") -> None:
        self.context = context
        self.ring = AnonymousRing(RING_BYTES)
        self.plane = ZmqPlane(context, "tcp://127.0.0.1:0", PIECE_BYTES)

    def open_writer(self, region: Descriptor | None = None) -> RegionWriter:
        """Connect."""
        return ZmqWriter(self.context, region or self.plane.descriptor(), "127.0.0.1", SendBuffers(RING_BYTES))

    def settle(self, writer: RegionWriter, writes: dict[int, WriteChunk]) -> list[ToDecode]:
        """Push, pull and copy until every completion has come out behind its bytes."""
        arrived: list[ToDecode] = []
        poller = zmq.Poller()
        assert writer.socket is not None
        poller.register(self.plane.socket, zmq.POLLIN)
        while len(arrived) < len(writes):
            for write_id in writer.progress():
                assert writer.send(encode(ready_of(writes[write_id])))
            poller.register(writer.socket, zmq.POLLOUT if writer.unfinished else 0)
            if not poller.poll(WAIT_MS):
                pytest.fail(f"{len(writes) - len(arrived)} writes never arrived")
            arrived.extend(self._receive(writes))
        return arrived

    def _receive(self, writes: dict[int, WriteChunk]) -> list[ToDecode]:
        messages: list[ToDecode] = []
        while (message := self.plane.receive()) is not None:
            if isinstance(message, Piece):
                start = writes[message.header.alloc_id].offset + message.header.offset
                copy_into(self.ring.buffer, start, message.payload)
            else:
                messages.append(message)
        return messages
