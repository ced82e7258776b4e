"""The prefill half of the zmq plane beside what ``tests/conformance`` demands of every plane."""

from collections.abc import Iterator

import pytest

from prefill_service.writers.base import PlaneOpenError
from prefill_service.writers.buffers import SendBuffers
from prefill_service.writers.zmq import MAX_URGENT, ZmqWriter
from protocol.messages import Descriptor
from runtime.endpoint import Context, open_context
from tests.conformance.planes import write_of

REGION: Descriptor = {"host": "", "port": 1, "piece_bytes": 4096}


@pytest.fixture
def context() -> Iterator[Context]:
    """A context whose sockets must all be closed by the test."""
    made = open_context(1, 16)
    yield made
    made.term()


def test_without_a_connection_nothing_leaves_and_nothing_blocks(context: Context) -> None:
    """Pieces and messages wait, boundedly; what is given up is forgotten and its memory is free again."""
    buffers = SendBuffers(1000)
    writer = ZmqWriter(context, REGION, "127.0.0.1", buffers)
    write = write_of(1, 0, 1000)
    assert writer.admits(write)
    assert not writer.commit(write, writer.acquire(write))
    assert writer.progress() == ()
    assert writer.unfinished
    for _ in range(MAX_URGENT):
        assert writer.send([b"M"])
    assert not writer.send([b"M"])
    assert not writer.admits(write_of(2, 0, 1000))
    writer.release(write)
    assert writer.admits(write_of(2, 0, 1000))
    assert writer.handed_over == 0
    writer.close()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"port": 0}, "port"),
        ({"port": 70_000}, "port"),
        ({"piece_bytes": 0}, "piece_bytes"),
        ({"piece_bytes": 1 << 40}, "piece_bytes"),
        ({"host": 5}, "host"),
    ],
)
def test_a_descriptor_is_checked(context: Context, change: dict[str, int], field: str) -> None:
    """A descriptor that cannot be right is refused by field before a socket is opened."""
    with pytest.raises(PlaneOpenError, match=f"^{field}: expected"):
        ZmqWriter(context, {**REGION, **change}, "127.0.0.1", SendBuffers(1))


def test_no_host_at_all_is_refused(context: Context) -> None:
    """Neither the descriptor nor the control endpoint says where to go."""
    with pytest.raises(PlaneOpenError, match="host"):
        ZmqWriter(context, REGION, "", SendBuffers(1))
