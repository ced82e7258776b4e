"""The decode half of the zmq plane: what is not a piece or a message never gets past it."""

from collections.abc import Iterator

import pytest
import zmq

from decode_service.regions.zmq import Piece, ZmqPlane
from protocol.codec import encode, encode_data
from protocol.errors import RemoteProtocolError
from protocol.messages import ChunkReady, DataPiece
from runtime.endpoint import Socket, open_context

WAIT_MS = 30_000
PIECE_BYTES = 100_000


@pytest.fixture
def ends() -> Iterator[tuple[ZmqPlane, Socket]]:
    """A plane and a bare socket that is connected to it."""
    context = open_context(1, 16)
    plane = ZmqPlane(context, "tcp://127.0.0.1:0", PIECE_BYTES, "data.example")
    push = context.socket(zmq.PUSH)
    push.linger = 0
    push.connect(plane.address)
    yield plane, push
    push.close()
    plane.close()
    context.term()


def test_the_descriptor_says_where_and_how(ends: tuple[ZmqPlane, Socket]) -> None:
    """Host only where it differs from the control endpoint's, the port that was really taken, and the piece size."""
    port = int(ends[0].address.rpartition(":")[2])
    assert ends[0].descriptor() == {"host": "data.example", "port": port, "piece_bytes": PIECE_BYTES}


def test_pieces_and_messages_come_in_order(ends: tuple[ZmqPlane, Socket]) -> None:
    """A piece carries its payload; the message that was sent behind it comes behind it."""
    plane, push = ends
    header = DataPiece("s", "room", 0, 1, 1, 0, 5)
    ready = ChunkReady("s", "room", 0, 1, 1, 5, None)
    push.send_multipart([*encode_data(header), b"hello"])
    push.send_multipart(encode(ready))
    assert plane.socket.poll(WAIT_MS)
    piece = plane.receive()
    assert isinstance(piece, Piece)
    assert (piece.header, bytes(piece.payload)) == (header, b"hello")
    assert plane.socket.poll(WAIT_MS)
    assert plane.receive() == ready
    assert plane.receive() is None


@pytest.mark.parametrize(
    ("frames", "field"),
    [
        ([b"DATA"], "DATA"),
        ([*encode_data(DataPiece("s", "r", 0, 1, 1, 0, 5)), b"four"], "num_bytes"),
        ([*encode_data(DataPiece("s", "r", 0, 1, 1, 0, 5)), b"hello", b"more"], "DATA"),
        ([b"DATA", b"\xc1", b""], None),
        ([b"GET / HTTP/1.1"], None),
    ],
)
def test_anything_else_is_refused(ends: tuple[ZmqPlane, Socket], frames: list[bytes], field: str | None) -> None:
    """A header without payload, a payload of another size, or no piece at all: refused by name, and the next one is read."""
    plane, push = ends
    push.send_multipart(frames)
    push.send_multipart([*encode_data(DataPiece("s", "room", 0, 1, 1, 0, 1)), b"x"])
    assert plane.socket.poll(WAIT_MS)
    with pytest.raises(RemoteProtocolError) as caught:
        plane.receive()
    assert field is None or caught.value.field == field
    assert plane.socket.poll(WAIT_MS)
    assert isinstance(plane.receive(), Piece)
