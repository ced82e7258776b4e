"""A world has the shape of its options, heals, and ends."""

from lab.simulator.options import Faults, Options
from lab.simulator.rules import Rules
from lab.simulator.world import World


def test_ranks_have_their_places_and_planes_take_turns() -> None:
    """Two stages of two prefill ranks and two decode ranks; the second prefill offers the second plane."""
    world = World(Options(prefill_tp=2, prefill_pp=2, decode_tp=2, heads=2, layers=2, planes=(("shm",), ("zmq",))), Rules())
    assert list(world.prefills) == ["p00", "p01", "p02", "p03"]
    assert [process.writer for process in world.prefills.values()] == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert world.prefills["p01"].offers == ("zmq",)
    assert list(world.decodes) == ["d0", "d1"]


def test_a_world_with_every_kind_of_misfortune_ends() -> None:
    """After the faults all rooms are over and every ring is empty."""
    faults = Faults(loss=0.1, prefill_crashes=1, decode_crashes=1, takeovers=1, torn_writes=1, partitions=1, departures=1)
    world = World(Options(seed=5, requests=4, prefill_tp=2, heads=2, room_deadline_s=7.0, faults=faults), Rules())
    world.run()
    assert world.is_over()
    assert world.faults["crashed"] >= 2


def test_a_successor_has_the_name_and_a_newer_life() -> None:
    """The former process stays where its peers can still reach it."""
    world = World(Options(), Rules())
    world.start()
    former = world.prefills["p00"]
    world.succeed(former)
    successor = world.prefills["p00"]
    assert (successor.name, successor.life) == ("p00", former.life + 1)
    assert world.former == [former]
    assert former.alive
