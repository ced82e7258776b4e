"""A small deployment offers every step, and time moves only when nothing else can."""

from lab.explore import shapes
from lab.explore_world import SmallWorld


def test_time_stands_still_while_anything_can_happen() -> None:
    """From the first state only subscriptions arrive; once all is lost time passes and they are repeated."""
    world = SmallWorld(shapes(2)[0])
    state = world.start()
    names = [name for name, _ in world.successors(state)]
    assert "p0 -> d: SUBSCRIBE" in names
    assert "p1 -> d: SUBSCRIBE is lost" in names
    assert "time passes" not in names
    for sender in ("p0", "p1"):
        state = dict(world.successors(state))[f"{sender} -> d: SUBSCRIBE is lost"]
    assert [name for name, _ in world.successors(state)] == ["time passes"]
    later = dict(world.successors(state))["time passes"]
    assert later.now == 0.2
    assert state.budget.total == 0


def test_without_faults_any_order_comes_to_the_same_end() -> None:
    """Whichever step is taken first, everything is done."""
    world = SmallWorld(shapes(0)[1])
    for pick in (0, -1):
        state = world.start()
        while not world.is_over(state):
            state = list(world.successors(state))[pick][1]
        assert {(who, done) for who, _, done in state.ended} == {("d", True), ("p0", True), ("p1", True)}


def test_two_writers_have_two_places() -> None:
    """Ranks of one group are told apart; ranks of two groups are each the first."""
    rivals, writers = (SmallWorld(shape) for shape in shapes(0))
    assert [rivals.writer(name).tp_rank for name in rivals.shape.prefills] == [0, 0]
    assert [writers.writer(name).tp_rank for name in writers.shape.prefills] == [0, 1]
