"""Simulated writes go in two halves, and some of them end badly."""

from lab.simulator.options import Faults, Options
from lab.simulator.rules import Rules
from lab.simulator.world import World


def played(plane: str, faults: Faults) -> World:
    """A whole run over one plane."""
    options = Options(
        seed=3, requests=6, planes=((plane,),), write_s=0.05, room_deadline_s=20.0, max_retired_regions=9, faults=faults
    )
    world = World(options, Rules())
    world.run()
    return world


def test_a_failed_write_is_tried_again() -> None:
    """On a plane without late bytes, with the same grant."""
    world = played("shm", Faults(write_failures=0.3))
    assert world.faults["writes_failed"]
    assert all(done for done, _ in world.decodes["d0"].ended.values())


def test_late_bytes_land_when_their_write_is_long_over() -> None:
    """On a one-sided plane half of the bytes may still be on their way."""
    world = played("nixl", Faults(write_failures=0.3, late_landings=True))
    assert world.results["late_landings"]


def test_pieces_travel_over_the_network() -> None:
    """What is lost of them is written again."""
    world = played("zmq", Faults(loss=0.2))
    assert all(done for done, _ in world.decodes["d0"].ended.values())
    assert world.decodes["d0"].handler.state.counters["ready_rejected_missing_bytes"]
