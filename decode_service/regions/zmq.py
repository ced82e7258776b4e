"""The ``zmq`` plane, decode half: pieces of payload arrive on a PULL socket and this process copies them into the ring.

Because this side performs every write, refusing a session's pieces is all it takes to make that session quiet.
"""

from dataclasses import dataclass

import zmq

from decode_service.regions.base import Quietness
from protocol.codec import decode_data_header, decode_to_decode
from protocol.errors import Fault, RemoteProtocolError
from protocol.limits import MAX_CONTROL_MESSAGE_BYTES, MAX_FRAMES
from protocol.messages import ChunkReady, DataPiece, Descriptor
from runtime.endpoint import Context, Protect, SocketLimits, bind_socket, leave_open, open_socket, receive_parts

RECEIVE_QUEUE = 4
"""Pieces of one writer that may wait in memory; beyond that its connection is not read and the writer waits."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One piece as it arrived. ``payload`` is zmq's own memory, kept alive by the view."""

    header: DataPiece
    payload: memoryview


class ZmqPlane:
    """A listening socket for payload and for the messages that must not overtake it."""

    name = "zmq"
    two_sided = True

    def __init__(
        self, context: Context, address: str, piece_bytes: int, advertised_host: str = "", protect: Protect = leave_open
    ) -> None:
        limits = SocketLimits(receive_queue=RECEIVE_QUEUE, frame_bytes=max(piece_bytes, MAX_CONTROL_MESSAGE_BYTES))
        self.socket = open_socket(context, zmq.PULL, limits)
        protect(self.socket)
        self.address = bind_socket(self.socket, address)
        self.piece_bytes = piece_bytes
        self._host = advertised_host

    def descriptor(self) -> Descriptor:
        """Port, piece size, and the host if it is not that of the control endpoint."""
        port = int(self.address.rpartition(":")[2])
        return {"host": self._host, "port": port, "piece_bytes": self.piece_bytes}

    def take(self) -> list[zmq.Frame] | None:
        """The next message, unread, or ``None`` if none waits."""
        return receive_parts(self.socket)

    def read(self, frames: list[zmq.Frame]) -> Piece | ChunkReady:
        """Open a message: a piece, or the word that a slice is complete. Raises ``RemoteProtocolError`` for anything else."""
        if frames[0].bytes == b"DATA":
            return self._piece(frames)
        message = decode_to_decode([frame.bytes for frame in frames[: MAX_FRAMES + 1]])
        if not isinstance(message, ChunkReady):
            raise RemoteProtocolError(Fault.WRONG_DIRECTION, "type", "DATA or CHUNK_READY on a data socket")
        return message

    def receive(self) -> Piece | ChunkReady | None:
        """``take`` and ``read`` in one."""
        frames = self.take()
        return None if frames is None else self.read(frames)

    def quietness(self, session: str) -> Quietness:  # noqa: ARG002 - the plane's interface
        """Always proven: no other process writes here. Who lives is not known."""
        return Quietness.CLOSED

    def forget(self, session: str) -> None:
        """Nothing is kept per session."""

    def close(self) -> None:
        """Close the socket; pieces that wait in it are dropped."""
        self.socket.close(0)

    def _piece(self, frames: list[zmq.Frame]) -> Piece:
        if len(frames) != 3:
            raise RemoteProtocolError("frame_count", "DATA", f"a header and a payload, not {len(frames) - 1} frames")
        header = decode_data_header(frames[1].bytes)
        payload = frames[2].buffer
        if payload.nbytes != header.num_bytes or payload.nbytes > self.piece_bytes:
            expected = f"{header.num_bytes} bytes of payload (at most {self.piece_bytes}), not {payload.nbytes}"
            raise RemoteProtocolError("piece_size", "num_bytes", expected, header.session)
        return Piece(header, payload)
