"""The ``zmq`` plane, prefill half: a slice leaves in pieces on a PUSH socket, without being copied on the way out.

A slice counts as visible when its last piece has been handed to the socket: what the decode rank must read *after* it, its
``CHUNK_READY``, travels on the same ordered socket. If the connection breaks in between, pieces are lost, the decode rank finds
the slice incomplete and rejects it, and it is written again.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import zmq

from prefill_service.outputs import WriteChunk
from prefill_service.writers.base import PlaneOpenError, WriteFailure
from prefill_service.writers.buffers import SendBuffers
from protocol.codec import encode_data
from protocol.limits import MAX_DATA_PIECE_BYTES
from protocol.messages import DataPiece, Descriptor
from runtime.endpoint import Context, SendOutcome, Socket, SocketLimits, connect_socket, open_socket, send_frames
from runtime.errors import StartError

SEND_QUEUE = 4
"""Pieces that wait in the socket; the rest of a slice stays with us until there is room."""
MAX_URGENT = 256


Connect = Callable[[Socket, str], object]
"""Connects the socket to that address, or closes it and raises ``StartError``."""
Disconnect = Callable[[Socket], None]
"""Undoes what ``Connect`` did, before the socket is closed."""


def leave_connected(socket: Socket) -> None:
    """Closing the socket is enough."""


@dataclass(slots=True)
class _Outgoing:
    """A slice that has not left completely. ``sent`` is the offset of its next piece."""

    write: WriteChunk
    filled: memoryview
    sent: int = 0


@dataclass(slots=True)
class _Held:
    """What is kept for one write from ``acquire`` to ``release``."""

    buffer: memoryview
    readers: list[zmq.MessageTracker] = field(default_factory=list)


class ZmqWriter:
    """One session's connection to one decode rank's data socket."""

    name = "zmq"
    poll_s = None

    def __init__(
        self,
        context: Context,
        region: Descriptor,
        control_host: str,
        buffers: SendBuffers,
        connect: Connect = connect_socket,
        disconnect: Disconnect = leave_connected,
    ) -> None:
        self._piece_bytes, address = _read_descriptor(region, control_host)
        self._disconnect = disconnect
        try:
            self.socket: Socket = open_socket(context, zmq.PUSH, SocketLimits(send_queue=SEND_QUEUE))
            # Pieces that were queued for a connection are of no use to the next one. Nothing is received here.
            self.socket.set(zmq.IMMEDIATE, 1)
            connect(self.socket, address)
        except StartError as error:
            raise PlaneOpenError(str(error)) from error
        self._buffers = buffers
        self._held: dict[int, _Held] = {}
        self._outgoing: deque[_Outgoing] = deque()
        self._urgent: deque[list[bytes]] = deque()
        self.handed_over = 0

    @property
    def unfinished(self) -> bool:
        """True while something waits for the socket to become writable."""
        return bool(self._outgoing or self._urgent)

    def admits(self, write: WriteChunk) -> bool:
        """Reserve memory for this slice, or say that it must wait until others have left."""
        return self._buffers.reserve(write.num_bytes)

    def acquire(self, write: WriteChunk) -> memoryview:
        """A buffer for the slice. Any thread; after ``admits``."""
        buffer = self._buffers.acquire(write.num_bytes)
        self._held[write.write_id] = _Held(buffer)
        return buffer

    def launch(self, write: WriteChunk) -> None:
        """Nothing: sockets belong to the loop's thread."""

    def commit(self, write: WriteChunk, filled: memoryview) -> bool:
        """Queue the slice behind the earlier ones. False: ``progress`` says when its last piece has been handed over."""
        self._outgoing.append(_Outgoing(write, filled))
        return False

    def progress(self) -> tuple[int, ...]:
        """Hand over as much as the socket takes; the writes whose last piece went."""
        finished: list[int] = []
        while self._send_urgent() and self._outgoing:
            outgoing = self._outgoing[0]
            if not self._send_piece(outgoing):
                break
            if outgoing.sent == outgoing.write.num_bytes:
                self._outgoing.popleft()
                finished.append(outgoing.write.write_id)
        return tuple(finished)

    def take_failures(self) -> tuple[WriteFailure, ...]:
        """None: a broken connection is made again by itself, and what it lost is rejected by the other side."""
        return ()

    def send(self, frames: list[bytes]) -> bool:
        """Send a message behind everything that was handed over so far. False if too many wait already: it is dropped."""
        if len(self._urgent) >= MAX_URGENT:
            return False
        self._urgent.append(frames)
        self._send_urgent()
        return True

    def release(self, write: WriteChunk) -> None:
        """Give the slice's buffer up; it is reused once zmq has let go of every piece of it."""
        self._outgoing = deque(outgoing for outgoing in self._outgoing if outgoing.write.write_id != write.write_id)
        held = self._held.pop(write.write_id, None)
        self._buffers.release(held.buffer if held else None, write.num_bytes, held.readers if held else ())

    def close(self) -> None:
        """Close the connection; pieces that have not left are dropped, since nobody will grant them a place again."""
        self._disconnect(self.socket)
        self.socket.close(0)

    def _send_urgent(self) -> bool:
        while self._urgent:
            if send_frames(self.socket, self._urgent[0]) is not SendOutcome.SENT:
                return False
            self._urgent.popleft()
        return True

    def _send_piece(self, outgoing: _Outgoing) -> bool:
        write = outgoing.write
        size = min(self._piece_bytes, write.num_bytes - outgoing.sent)
        header = encode_data(
            DataPiece(write.session, write.room, write.chunk, write.alloc_id, write.attempt, outgoing.sent, size)
        )
        payload = outgoing.filled[outgoing.sent : outgoing.sent + size]
        try:
            tracker = self.socket.send_multipart((*header, payload), zmq.NOBLOCK, copy=False, track=True)
        except zmq.Again:
            return False
        assert tracker is not None
        self._held[write.write_id].readers.append(tracker)
        outgoing.sent += size
        self.handed_over += size
        return True


def _read_descriptor(region: Descriptor, control_host: str) -> tuple[int, str]:
    host, port, piece_bytes = region.get("host"), region.get("port"), region.get("piece_bytes")
    if not isinstance(piece_bytes, int) or not 1 <= piece_bytes <= MAX_DATA_PIECE_BYTES:
        raise PlaneOpenError(f"piece_bytes: expected 1 to {MAX_DATA_PIECE_BYTES}, not {piece_bytes!r}")
    if not isinstance(port, int) or not 1 <= port <= 65_535:
        raise PlaneOpenError(f"port: expected 1 to 65535, not {port!r}")
    if not isinstance(host, str) or (not host and not control_host):
        raise PlaneOpenError(f"host: expected the name or address of a host, not {host!r}")
    return piece_bytes, f"tcp://{host or control_host}:{port}"
