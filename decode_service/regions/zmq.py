"""The ``zmq`` plane, decode half: pieces of payload arrive on a PULL socket and this process copies them into the ring.

Because this side performs every write, refusing a session's pieces is all it takes to make that session quiet.
"""

from dataclasses import dataclass

import zmq

from decode_service.regions.base import Quietness
from protocol.codec import decode_data_header, decode_to_decode
from protocol.errors import RemoteProtocolError
from protocol.limits import MAX_CONTROL_MESSAGE_BYTES, MAX_FRAMES
from protocol.messages import DataPiece, Descriptor, ToDecode
from runtime.endpoint import Context, SocketLimits, bind_socket, open_socket

RECEIVE_QUEUE = 16
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

    def __init__(self, context: Context, address: str, piece_bytes: int, advertised_host: str = "") -> None:
        limits = SocketLimits(receive_queue=RECEIVE_QUEUE, frame_bytes=max(piece_bytes, MAX_CONTROL_MESSAGE_BYTES))
        self.socket = open_socket(context, zmq.PULL, limits)
        self.address = bind_socket(self.socket, address)
        self.piece_bytes = piece_bytes
        self._host = advertised_host

    def descriptor(self) -> Descriptor:
        """Port, piece size, and the host if it is not that of the control endpoint."""
        port = int(self.address.rpartition(":")[2])
        return {"host": self._host, "port": port, "piece_bytes": self.piece_bytes}

    def receive(self) -> Piece | ToDecode | None:
        """The next piece or message, or ``None`` if none waits. Raises ``RemoteProtocolError`` for anything else."""
        try:
            frames = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return None
        if frames[0].bytes != b"DATA":
            return decode_to_decode([frame.bytes for frame in frames[: MAX_FRAMES + 1]])
        return self._piece(frames)

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
