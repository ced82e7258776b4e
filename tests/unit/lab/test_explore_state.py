"""States that go on alike have equal keys."""

from dataclasses import replace

from lab.explore import shapes
from lab.explore_world import SmallWorld


def test_keys_tell_states_apart_by_what_can_happen() -> None:
    """Time, wire and budget count; the bytes that restore a machine do not."""
    state = SmallWorld(shapes(1)[0]).start()
    copies = tuple((name, replace(machine, blob=b"other")) for name, machine in state.machines)
    assert replace(state, machines=copies).key() == state.key()
    assert replace(state, now=1.0).key() != state.key()
    assert replace(state, wire=()).key() != state.key()
    assert replace(state, budget=state.budget._replace(total=0)).key() != state.key()
