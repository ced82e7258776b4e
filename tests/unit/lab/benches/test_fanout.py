"""A free is measured to the moment at which everybody who waits has been told."""

from lab.benches.fanout import WAITING, Told


def test_only_those_who_wait_are_told_with_the_free() -> None:
    """Ten watermarks and the writer's verdict; the rest is owed, and the dead are not even that."""
    world = Told(50, 3)
    world.free_us()
    assert world.handler.has_fan_out
    assert world.background_us()[1] == 50 + 1 - WAITING
    dead = Told(50, 3, dead=True)
    dead.free_us()
    assert dead.background_us()[1] == 1
