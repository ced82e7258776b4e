"""Each misfortune strikes whom it is meant for."""

from lab.simulator.options import Faults, Options
from lab.simulator.rules import Rules
from lab.simulator.world import World


def play(faults: Faults) -> World:
    """A whole run with these faults."""
    world = World(Options(seed=4, requests=6, think_s=1.0, write_s=0.05, room_deadline_s=7.0, faults=faults), Rules())
    world.run()
    return world


def test_a_crash_is_followed_by_a_new_life() -> None:
    """Killed processes start again."""
    world = play(Faults(prefill_crashes=2))
    assert world.faults["crashed"] == world.results["restarts"] > 0
    assert world.prefills["p00"].life == 1 + world.results["restarts"]


def test_who_is_buried_stays_dead() -> None:
    """Also when everything heals."""
    world = play(Faults(burials=1))
    assert not world.prefills["p00"].alive


def test_a_write_is_torn_in_its_middle() -> None:
    """The process is stopped when half of the bytes are there."""
    world = play(Faults(torn_writes=3))
    assert world.results["torn_writes"] > 0
    assert world.faults["paused"] >= world.results["torn_writes"]


def test_who_leaves_in_order_is_let_go() -> None:
    """The process ends once its machine says that it may."""
    world = play(Faults(departures=2))
    assert world.results["departed_in_order"] == world.results["departures"] > 0
