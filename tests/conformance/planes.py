"""The pair of halves of each data plane behind one face, so that one suite can hold both to the same promises."""

import os
import secrets
import threading
from pathlib import Path

import pytest
import zmq

from decode_service.regions.memory import AnonymousRing, SharedRing, copy_into, segment_name
from decode_service.regions.one_sided import OneSidedPlane, mooncake_plane, nixl_plane
from decode_service.regions.shm import ShmPlane
from decode_service.regions.zmq import Piece, ZmqPlane
from prefill_service.outputs import OpenPlane, WriteChunk
from prefill_service.writers.arena import Arena
from prefill_service.writers.base import RegionWriter
from prefill_service.writers.buffers import SendBuffers
from prefill_service.writers.one_sided import open_one_sided, register
from prefill_service.writers.shm import ShmWriter
from prefill_service.writers.zmq import ZmqWriter
from protocol.codec import encode
from protocol.layout import ModelLayout, PageRun, RankLayout
from protocol.messages import ChunkReady, Descriptor, ToDecode
from runtime import nixl_engine
from runtime.mooncake_engine import MooncakeInitiator
from runtime.nixl_engine import NixlInitiator
from runtime.one_sided import Initiator

PLANES = tuple(os.environ.get("TEST_PLANES", "shm,zmq").split(","))
"""The planes to hold to the promises; without ``TEST_PLANES`` those that need nothing but this package."""
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


def open_pair(plane: str, directory: Path, context: "zmq.Context[zmq.Socket[bytes]]") -> "Pair":
    """Both halves of a plane, in a directory of the test's own."""
    match plane:
        case "shm":
            return ShmPair(directory)
        case "zmq":
            return ZmqPair(context)
        case _:
            return OneSidedPair(plane)


class Pair:
    """A ring, the plane that offers it, and the writer that a test opens on it."""

    ring: AnonymousRing | SharedRing
    plane: ShmPlane | ZmqPlane | OneSidedPlane

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


class OneSidedPair(Pair):
    """The ``nixl`` or the ``mooncake`` plane with its real engine, both ends in this process."""

    plane: OneSidedPlane

    def __init__(self, name: str) -> None:
        self.name = name
        self.ring = AnonymousRing(RING_BYTES)
        nixl_engine.prepare_environment("")
        token = secrets.token_hex(8)
        self.initiator: Initiator
        if name == "nixl":
            self.plane = nixl_plane(self.ring.buffer, f"decode-{token}")
            self.initiator = NixlInitiator(f"prefill-{token}")
        else:
            self.plane = mooncake_plane(self.ring.buffer, "127.0.0.1")
            self.initiator = MooncakeInitiator()
        self.arena = Arena(2 * RING_BYTES)
        register(self.initiator, self.arena)

    def open_writer(self, region: Descriptor | None = None) -> RegionWriter:
        """Connect."""
        layout = RankLayout(ModelLayout(()), 0, 1, 0, 1, (0, 0))
        order = OpenPlane("peer", SESSION, self.name, region or self.plane.descriptor(), RING_BYTES, layout)
        return open_one_sided(order, self.initiator, self.arena)

    def settle(self, writer: RegionWriter, writes: dict[int, WriteChunk]) -> list[ToDecode]:
        """Ask until the engine has reported every write as complete; completions travel elsewhere."""
        arrived: list[ToDecode] = []
        patience = threading.Event()
        for _ in range(WAIT_MS):
            arrived += [ready_of(writes[write_id]) for write_id in writer.progress()]
            assert writer.take_failures() == ()
            if len(arrived) == len(writes):
                return arrived
            patience.wait(0.001)
        pytest.fail(f"{len(writes) - len(arrived)} writes were never reported as complete")

    def close(self) -> None:
        """Close both ends, then the ring."""
        self.initiator.close()
        super().close()


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
