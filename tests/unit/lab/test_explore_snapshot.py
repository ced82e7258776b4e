"""A machine goes on from its bytes, and is known again by what it will do."""

from lab.explore import shapes
from lab.explore_snapshot import NoJitter, constant, digest, dump, load
from lab.explore_world import DECODE, SmallWorld
from protocol.layout import PageRun
from protocol.timers import Timers


def test_a_machine_goes_on_from_its_bytes() -> None:
    """The copy answers as the original does, and shares what is constant with it."""
    world = SmallWorld(shapes(0)[0])
    machine = load(dict(world.start().machines)[DECODE].blob)
    copy = load(dump(machine))
    assert copy.settings is machine.settings
    assert digest(copy) == digest(machine)
    assert copy.abort_room("a", "enough", 0.0) == machine.abort_room("a", "enough", 0.0)


def test_what_will_be_done_differently_has_another_digest() -> None:
    """One more room is a difference; one more count for people is none."""
    world = SmallWorld(shapes(0)[0])
    machine = load(dict(world.start().machines)[DECODE].blob)
    before = digest(machine)
    machine.state.counters["something"] += 1
    assert digest(machine) == before
    machine.register_room("c", "g0", 1, PageRun(()), 0.0)
    assert digest(machine) != before


def test_which_chunks_have_arrived_makes_a_difference() -> None:
    """The first of two is not the second of two."""
    assert digest(bytearray(b"\1\0")) != digest(bytearray(b"\0\1"))
    assert digest({1, 2}) == digest({2, 1})


def test_timers_are_what_is_due_when() -> None:
    """How often a deadline was moved does not matter, where it is does."""
    moved, set_once, other = Timers[str](), Timers[str](), Timers[str]()
    moved.set("a", 1.0)
    moved.set("a", 2.0)
    set_once.set("a", 2.0)
    other.set("a", 3.0)
    assert digest(moved) == digest(set_once) != digest(other)


def test_chance_is_a_constant() -> None:
    """No jitter, and the lowest number."""
    assert (NoJitter().random(), NoJitter().randrange(9)) == (0.0, 0)
    assert constant(0) is constant(0)
