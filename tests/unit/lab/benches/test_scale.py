"""The simulated fleet is made of the shipped machines and moves every chunk."""

from lab.benches.scale import ScaleWorld


def test_the_simulated_fleet_moves_every_chunk() -> None:
    """Every room reaches every decode rank; a chunk costs at least its request, grant, word and verdict."""
    world = ScaleWorld(3, 2, 0.5)
    world.carry(6)
    assert [decode.chunks for decode in world.decodes.values()] == [6, 6]
    messages, _ = world.per_chunk()
    assert messages >= 4
