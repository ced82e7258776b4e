"""What every data plane promises, whatever carries the bytes."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from decode_service.regions.base import Quietness
from decode_service.regions.one_sided import OneSidedPlane
from decode_service.regions.zmq import ZmqPlane
from prefill_service.outputs import WriteChunk
from prefill_service.writers.base import PlaneOpenError
from protocol.messages import ChunkReady
from tests.conformance.planes import (
    PIECE_BYTES,
    PLANES,
    RING_BYTES,
    SESSION,
    Pair,
    open_pair,
    ready_of,
    write_of,
)

SIZES = (1, 7, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES + 5)


@pytest.fixture(params=PLANES)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    """Each plane in turn; at the end its sockets are closed and no file is left."""
    with zmq.Context() as context:
        made = open_pair(request.param, tmp_path, context)
        yield made
        made.close()
        if isinstance(made.plane, ZmqPlane):
            assert made.plane.socket.closed
        assert list(tmp_path.iterdir()) == []


def fill(pair: Pair, writes: dict[int, WriteChunk], contents: dict[int, bytes]) -> list[ChunkReady]:
    """Write every slice through one writer, and return the completions in the order in which they arrived."""
    writer = pair.open_writer()
    try:
        for write in writes.values():
            assert writer.admits(write)
            block = writer.acquire(write)
            assert block.nbytes == write.num_bytes
            block[:] = contents[write.write_id]
            writer.launch(write)
            writer.commit(write, block)
            del block
        ready = [message for message in pair.settle(writer, writes) if isinstance(message, ChunkReady)]
        for write in writes.values():
            writer.release(write)
        return ready
    finally:
        writer.close()


@pytest.mark.parametrize("size", SIZES)
def test_exactly_the_slice_is_written(pair: Pair, size: int) -> None:
    """A slice of any size arrives byte for byte at its offset, and no byte beside it changes."""
    pair.ring.buffer[:] = b"\x5a" * RING_BYTES
    content = random.Random(size).randbytes(size)
    write = write_of(1, 1000, size)
    assert fill(pair, {1: write}, {1: content}) == [ready_of(write)]
    expected = b"\x5a" * 1000 + content + b"\x5a" * (RING_BYTES - 1000 - size)
    assert bytes(pair.ring.buffer) == expected


def test_slices_that_touch_do_not_mix(pair: Pair) -> None:
    """Many writes in flight at once, side by side and out of order, each end up in their own place."""
    order = random.Random(3)
    starts = list(range(0, RING_BYTES, 5000))[:-1]
    order.shuffle(starts)
    writes = {index: write_of(index, start, 5000) for index, start in enumerate(starts, 1)}
    contents = {index: order.randbytes(5000) for index in writes}
    assert {ready.alloc_id for ready in fill(pair, writes, contents)} == set(writes)
    for index, write in writes.items():
        assert bytes(pair.ring.buffer[write.offset : write.offset + 5000]) == contents[index]


def test_a_released_buffer_never_carries_the_next_slice_into_the_last_one(pair: Pair) -> None:
    """One session writes the same sizes again and again: reuse of buffers never shows in what arrived before."""
    for turn in range(6):
        writes = {index: write_of(index, index * 9000, 9000) for index in range(1, 5)}
        contents = {index: bytes([turn * 16 + index]) * 9000 for index in writes}
        fill(pair, writes, contents)
        for index, write in writes.items():
            assert bytes(pair.ring.buffer[write.offset : write.offset + 9000]) == contents[index]


def test_quiet_once_the_writer_is_closed(pair: Pair) -> None:
    """An open writer is proven quiet only where this side does the writing; a closed one only where this side can see it."""
    writer = pair.open_writer()
    open_proof = Quietness.CLOSED if pair.plane.two_sided else Quietness.NOT_PROVEN
    closed_proof = Quietness.NOT_PROVEN if isinstance(pair.plane, OneSidedPlane) else Quietness.CLOSED
    assert pair.plane.quietness(SESSION) is open_proof
    assert pair.plane.quietness("another-session") is closed_proof
    writer.close()
    assert pair.plane.quietness(SESSION) is closed_proof
    pair.plane.forget(SESSION)


@pytest.mark.parametrize("region", [{}, {"segment": "../etc/passwd"}, {"segment": 5, "port": "x", "piece_bytes": 0}])
def test_a_descriptor_that_cannot_be_opened_is_a_clear_error(pair: Pair, region: dict[str, int | str | bytes]) -> None:
    """Whatever the descriptor says, the answer is an error that names the field, never a file or a port of its choosing."""
    with pytest.raises(PlaneOpenError, match="expected"):
        pair.open_writer(region or {"nothing": 0})
