"""A simulated decode rank carries out what its machine wants, and objects to what it must not want."""

import pytest

from decode_service.outputs import RoomDone
from lab.simulator.memory import ViolationError
from lab.simulator.options import Options
from lab.simulator.rules import Rules
from lab.simulator.world import World


def started() -> World:
    """A world whose ranks have just begun."""
    world = World(Options(seed=3, requests=1), Rules())
    world.start()
    return world


def test_an_id_is_registered_once() -> None:
    """The second time it is refused and changes nothing."""
    decode = started().decodes["d0"]
    assert decode.register_room("x", "g0", 4)
    assert not decode.register_room("x", "g0", 5)
    assert decode.registered["x"] == 4


def test_a_room_ends_once_and_not_while_it_is_scattered() -> None:
    """Both are objected to."""
    decode = started().decodes["d0"]
    decode.register_room("x", "g0", 4)
    decode.scattering["x"] += 1
    with pytest.raises(ViolationError, match="gives back the pages of room x"):
        decode.run((RoomDone("x"),))
    decode.scattering["x"] -= 1
    decode.ended["x"] = (True, "")
    with pytest.raises(ViolationError, match="reports the end of room x twice"):
        decode.run((RoomDone("x"),))


def test_bytes_of_grants_that_have_ended_are_nobodys() -> None:
    """A write without a live grant is objected to, until the process is dead."""
    decode = started().decodes["d0"]
    memory = decode.memory
    with pytest.raises(ViolationError, match="the grant has ended"):
        memory.write(99, 0, b"x")
    decode.end_life()
    memory.write(99, 0, b"x")
