"""Small deployments, all of them: every interleaving within bounds, and a mutant that does not get through."""

import pytest

from lab.explore import shapes
from lab.explore_search import explore
from tests.simulation.test_mutants import MUTANTS

RIVALS, WRITERS = 0, 1


@pytest.mark.parametrize(("shape", "faults"), [(RIVALS, 0), (WRITERS, 0)])
def test_nothing_goes_wrong_in_any_order(shape: int, faults: int) -> None:
    """Every state within the bounds is seen, and everything ends."""
    found = explore(shapes(faults)[shape])
    assert not found.violation, found.path
    assert found.exhausted
    assert found.ends


@pytest.mark.slow
@pytest.mark.parametrize("shape", [RIVALS, WRITERS])
def test_nothing_goes_wrong_in_any_order_with_one_fault(shape: int) -> None:
    """One message is lost or repeated, one prefill dies, or one engine gives a room up, at any moment."""
    found = explore(shapes(1)[shape])
    assert not found.violation, found.path
    assert found.exhausted


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("closed_is_free", RIVALS),
        ("acknowledges_at_once", WRITERS),
        ("one_word_is_enough", WRITERS),
        ("gate_is_open", RIVALS),
        ("says_ready_once", WRITERS),
    ],
)
def test_a_rule_that_is_missing_is_missed(name: str, shape: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search finds a way to a broken promise, and says which."""
    MUTANTS[name].apply(monkeypatch)
    found = explore(shapes(1)[shape])
    assert found.violation
    assert found.path[0] == "start"
