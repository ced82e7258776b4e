"""Memory for slices on their way: bounded, and reused only when nobody reads it."""

import zmq

from prefill_service.writers.buffers import MAX_FREE, SendBuffers


def test_the_budget_holds_and_one_slice_always_passes() -> None:
    """A slice larger than the budget passes alone; others wait until it is released."""
    buffers = SendBuffers(100)
    assert buffers.reserve(500)
    assert not buffers.reserve(1)
    buffers.release(buffers.acquire(500), 500, ())
    assert buffers.reserve(60)
    assert buffers.reserve(40)
    assert not buffers.reserve(1)
    buffers.release(None, 40, ())
    assert buffers.reserve(40)


def test_a_buffer_is_reused_only_after_its_last_reader() -> None:
    """While zmq reads a buffer it is neither reused nor counted as free; afterwards the same memory comes again."""
    buffers = SendBuffers(100)
    with zmq.Context() as context, context.socket(zmq.PAIR) as sender, context.socket(zmq.PAIR) as receiver:
        sender.bind("inproc://pair")
        receiver.connect("inproc://pair")
        sender.copy_threshold = 0
        assert buffers.reserve(100)
        first = buffers.acquire(100)
        first[:] = b"a" * 100
        tracker = sender.send(first, copy=False, track=True)
        assert tracker is not None
        buffers.release(first, 100, (tracker,))
        assert not buffers.reserve(1)
        assert receiver.recv() == b"a" * 100
        tracker.wait(30)
    assert buffers.reserve(100)
    assert buffers.acquire(100) is first


def test_few_buffers_are_kept() -> None:
    """Buffers of many sizes do not pile up."""
    buffers = SendBuffers(1 << 20)
    for size in range(1, 4 * MAX_FREE):
        assert buffers.reserve(size)
        buffers.release(buffers.acquire(size), size, ())
    assert len(buffers._free) == MAX_FREE
