"""One session's writes through an engine: visible on its word alone, given up for good, and bounded by registered memory."""

from collections.abc import Iterator

import pytest

from prefill_service.outputs import OpenPlane
from prefill_service.writers.arena import Arena
from prefill_service.writers.base import PlaneOpenError
from prefill_service.writers.one_sided import OneSidedWriter, open_one_sided, register
from protocol.layout import ModelLayout, RankLayout
from tests.conformance.planes import SESSION, write_of
from tests.unit.one_sided import ScriptedEngine

RING = {"address": 4096, "num_bytes": 1 << 16}
LAYOUT = RankLayout(ModelLayout(()), 0, 1, 0, 1, (0, 0))


def order_of(num_bytes: int) -> OpenPlane:
    """D's answer for a ring of that size."""
    return OpenPlane("peer", SESSION, "nixl", RING, num_bytes, LAYOUT)


@pytest.fixture
def engine() -> ScriptedEngine:
    """An engine that does what the test says."""
    return ScriptedEngine()


@pytest.fixture
def writer(engine: ScriptedEngine) -> Iterator[OneSidedWriter]:
    """An open writer with memory for two slices of a kilobyte."""
    arena = Arena(2048)
    register(engine, arena)
    assert engine.registered == [(arena.address, 2048)]
    made = open_one_sided(order_of(1 << 16), engine, arena)
    yield made
    made.close()
    assert engine.closed == 1


def begin(writer: OneSidedWriter, write_id: int, offset: int) -> None:
    """Fill, launch and commit a slice of a kilobyte."""
    write = write_of(write_id, offset, 1024)
    assert writer.admits(write)
    block = writer.acquire(write)
    block[:] = bytes([write_id]) * 1024
    writer.launch(write)
    assert not writer.commit(write, block)


def test_visible_on_the_engines_word(writer: OneSidedWriter, engine: ScriptedEngine) -> None:
    """A write is reported once, when the engine says that it is complete, and is not asked for again."""
    begin(writer, 1, 5000)
    (transfer,) = engine.transfers
    assert (transfer.offset, transfer.num_bytes) == (5000, 1024)
    assert (writer.progress(), writer.handed_over) == ((), 0)
    transfer.ended = True
    assert (writer.progress(), writer.handed_over) == ((1,), 1024)
    assert writer.progress() == ()
    assert transfer.asked == 2
    writer.release(write_of(1, 5000, 1024))
    assert not transfer.abandoned


def test_a_failure_is_reported_once_with_its_reason(writer: OneSidedWriter, engine: ScriptedEngine) -> None:
    """One write's failure is not another's."""
    begin(writer, 1, 0)
    begin(writer, 2, 1024)
    engine.transfers[0].failure = "the peer is gone"
    engine.transfers[1].ended = True
    assert writer.progress() == (2,)
    assert writer.take_failures() == ((1, "the peer is gone"),)
    assert writer.take_failures() == ()
    writer.release(write_of(1, 0, 1024))
    assert not engine.transfers[0].abandoned


def test_a_write_that_is_given_up_is_abandoned(writer: OneSidedWriter, engine: ScriptedEngine) -> None:
    """Its memory serves the next slice; what the engine may still read from it reaches a place that nobody reads."""
    begin(writer, 1, 0)
    writer.release(write_of(1, 0, 1024))
    assert engine.transfers[0].abandoned
    assert writer.progress() == ()


def test_memory_is_bounded(writer: OneSidedWriter) -> None:
    """A third slice waits until one of the two has been released."""
    begin(writer, 1, 0)
    begin(writer, 2, 1024)
    third = write_of(3, 2048, 1024)
    assert not writer.admits(third)
    writer.release(write_of(1, 0, 1024))
    assert writer.admits(third)


def test_it_carries_no_messages(writer: OneSidedWriter) -> None:
    """Completions travel on the control connection."""
    assert not writer.send([b"x"])
    assert (writer.socket, writer.unfinished) == (None, False)


def test_what_does_not_open_says_why(engine: ScriptedEngine) -> None:
    """A description that does not fit, and an engine that refuses, are reasons to try another plane."""
    with pytest.raises(PlaneOpenError, match="num_bytes: expected 10"):
        open_one_sided(order_of(10), engine, Arena(2048))
    engine.refuses = "no route"
    with pytest.raises(PlaneOpenError, match="no route"):
        open_one_sided(order_of(1 << 16), engine, Arena(2048))
    with pytest.raises(PlaneOpenError, match="no route"):
        register(engine, Arena(2048))
