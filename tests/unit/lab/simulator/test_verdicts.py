"""A room fails only for a reason, and is done only with its own bytes."""

import pytest

from lab.simulator.memory import ViolationError
from lab.simulator.options import Faults, Options
from lab.simulator.rules import Rules
from lab.simulator.verdicts import check_bytes, demand_end, demand_no_leaks, demand_reason, demand_speed
from lab.simulator.world import World


def played(faults: Faults | None = None) -> World:
    """A world at its quiet end."""
    world = World(Options(seed=3, requests=1, faults=faults or Faults()), Rules())
    world.start()
    world.play(30.0)
    return world


def test_reasons_are_looked_for() -> None:
    """A crash explains that a prefill is gone, and nothing explains bad arithmetic."""
    quiet, crashed = played(), played(Faults(prefill_crashes=1))
    demand_reason(crashed, crashed.decodes["d0"], "r0", "prefill_gone")
    for world, code in ((quiet, "prefill_gone"), (quiet, "deadline"), (crashed, "invalid"), (crashed, "corrupt")):
        with pytest.raises(ViolationError, match=f"failed with '{code}' without a reason"):
            demand_reason(world, world.decodes["d0"], "r0", code)


def test_wrong_bytes_are_found() -> None:
    """One chunk that consists of something else is enough."""
    world = played()
    decode, request = world.decodes["d0"], world.engines.requests["r0"]
    check_bytes(world, request, decode)
    decode.arrived["r0"][0] = b"something else"
    with pytest.raises(ViolationError, match="the bytes of chunk 0 are wrong"):
        check_bytes(world, request, decode)


def test_ends_and_leaks_are_demanded() -> None:
    """Whoever was not told is stuck, and a lost session is a leak."""
    world = played()
    demand_end(world)
    demand_no_leaks(world)
    world.decodes["d0"].registered["never"] = 1
    with pytest.raises(ViolationError, match="stuck: d0 never told"):
        demand_end(world)
    world.prefills["p00"].handler.state.peers["d0"].stopping = "s"
    with pytest.raises(ViolationError, match="leak in p00/1"):
        demand_no_leaks(world)


def test_slowness_is_judged_by_what_was_lost() -> None:
    """Each lost message excuses twice the longest interval."""
    world = played()
    request = world.engines.requests["r0"]
    request.began, request.ended = 0.0, 13.0
    world.network.losses = [1.0]
    demand_speed(world, request, 10.0)
    world.network.losses = []
    with pytest.raises(ViolationError, match="with 0 lost messages"):
        demand_speed(world, request, 10.0)
