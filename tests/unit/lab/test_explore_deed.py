"""One step changes what it touches and objects to what must not be."""

import pytest

from lab.explore import shapes
from lab.explore_deed import DECODE, Deed
from lab.explore_state import RunningWrite
from lab.explore_world import SmallWorld
from lab.simulator.memory import ViolationError


def started() -> tuple[SmallWorld, Deed]:
    """A deed at the first state of two rivals."""
    world = SmallWorld(shapes(1)[0])
    return world, Deed(world, world.start())


def test_a_message_arrives_once() -> None:
    """The first subscription leaves the wire, and its answer and the watermark follow."""
    _, deed = started()
    assert deed.deliver(("p0", DECODE)) == "SUBSCRIBE"
    wire = dict(deed.done().wire)
    assert ("p0", DECODE) not in wire
    assert [frames[0] for frames in wire[DECODE, "p0"]] == [b"SUBSCRIBED", b"WATERMARK"]


def test_a_write_without_a_grant_is_objected_to() -> None:
    """Nobody may write what was never granted."""
    _, deed = started()
    write = RunningWrite("p0", 1, 1, "s", "a", 0, 99, 0, 1, 1)
    deed._writes.append(write)
    with pytest.raises(ViolationError, match="the grant has ended"):
        deed.advance(write)


def test_a_crash_loses_what_was_sent_to_the_dead_and_not_what_they_sent() -> None:
    """A new life subscribes behind the messages of the former one."""
    _, deed = started()
    deed.deliver(("p0", DECODE))
    deed.put(("p0", DECODE), (b"late",))
    deed.crash("p0")
    state = deed.done()
    wire = dict(state.wire)
    assert (DECODE, "p0") not in wire
    assert [frames[0] for frames in wire["p0", DECODE]] == [b"late", b"SUBSCRIBE"]
    assert dict(state.lives)["p0"] == 2


def test_what_a_machine_did_before_is_remembered() -> None:
    """The same situation costs one call."""
    world, deed = started()
    deed.deliver(("p0", DECODE))
    count = len(world.reactions)
    again = Deed(world, world.start())
    again.deliver(("p0", DECODE))
    assert len(world.reactions) == count
    assert again.done().key() == deed.done().key()
