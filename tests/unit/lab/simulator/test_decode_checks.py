"""The invariants of a decode rank hold in a world without faults, and their checks find a ring that breaks them."""

import pytest

from decode_service.allocator import StagingAllocator
from lab.simulator.decode_checks import DecodeChecks, decode_leaks
from lab.simulator.memory import ViolationError
from lab.simulator.options import Options
from lab.simulator.rules import Rules
from lab.simulator.world import World
from protocol.watermark import Watermark


@pytest.fixture
def world() -> World:
    """A quiet world in the middle of its work."""
    world = World(Options(seed=3, requests=2), Rules())
    world.start()
    return world


def test_a_quiet_world_leaves_nothing_behind(world: World) -> None:
    """At the end every table is empty but for the sessions."""
    world.play(30.0)
    handler = world.decodes["d0"].handler
    DecodeChecks("d0").after_step(handler)
    assert list(decode_leaks(handler, prefills=1)) == []
    assert list(decode_leaks(handler, prefills=0))


def test_a_watermark_that_falls_is_found(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks remember the highest value of the epoch."""
    handler, checks = world.decodes["d0"].handler, DecodeChecks("d0")
    monkeypatch.setattr(StagingAllocator, "get_watermark", lambda _: Watermark(3, 0))
    handler.state.grants.allocator.round = 3
    checks.after_step(handler)
    monkeypatch.setattr(StagingAllocator, "get_watermark", lambda _: Watermark(2, 0))
    with pytest.raises(ViolationError, match="the watermark fell"):
        checks.after_step(handler)


def test_a_parked_head_is_found(world: World) -> None:
    """An empty ring starts over."""
    handler = world.decodes["d0"].handler
    handler.state.grants.allocator.head = 1
    with pytest.raises(ViolationError, match="an empty ring has head 1"):
        DecodeChecks("d0").after_step(handler)
