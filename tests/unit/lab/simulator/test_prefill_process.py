"""A simulated prefill rank carries out what its machine wants, and objects to what it must not want."""

import pytest

from lab.simulator.memory import ViolationError
from lab.simulator.options import Faults, Options
from lab.simulator.rules import Rules
from lab.simulator.world import World
from prefill_service.outputs import ClosePlane, RoomDone, WriteChunk
from protocol.layout import PageRun


def played(faults: Faults | None = None) -> World:
    """A world at its quiet end."""
    world = World(Options(seed=3, requests=1, faults=faults or Faults()), Rules())
    world.start()
    world.play(10.0)
    return world


def test_kernel_locks_follow_the_plane_and_the_life() -> None:
    """Held while the plane is open, abandoned when the process dies."""
    world = played()
    prefill, memory = world.prefills["p00"], world.decodes["d0"].memory
    assert memory.lock_holders == set(prefill.planes)
    prefill.end_life()
    assert memory.lock_holders == set()
    assert memory.abandoned_locks == set(prefill.planes)


def test_a_plane_that_never_opens_is_said_so() -> None:
    """Nobody gets a session over it."""
    prefill = played(Faults(closed_plane="shm")).prefills["p00"]
    assert prefill.planes == {}
    assert prefill.handler.state.counters["planes_failed"]


def test_pages_are_not_given_back_while_they_are_read() -> None:
    """Neither is a plane closed, nor an ended room written again."""
    prefill = played().prefills["p00"]
    session = next(iter(prefill.planes))
    write = WriteChunk(9, "d0", session, "x", 0, 9, 1, 0, 1, PageRun((0,)), 0, 1)
    prefill.writes.running[9] = write
    with pytest.raises(ViolationError, match="gives back the pages of room x"):
        prefill.run((RoomDone("x"),))
    with pytest.raises(ViolationError, match="closes the plane"):
        prefill.run((ClosePlane("d0", session),))
    del prefill.writes.running[9]
    prefill.ended["x"] = (True, "")
    with pytest.raises(ViolationError, match="which the engine has back"):
        prefill.run((write,))
