"""Copies beside the forward pass: a layer may be read once it is saved, and never if its step has failed."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event

import pytest

from integrations.vllm.step_gate import NotComputedError, StepGate

LAYERS = ("first", "second")


class Gate(StepGate):
    """Says when somebody begins to wait."""

    def __init__(self, wait_s: float = 60.0) -> None:
        super().__init__(LAYERS, wait_s)
        self.waits = Event()

    def _is_over(self, step: int, layer: int, pages: frozenset[int]) -> bool:
        over = super()._is_over(step, layer, pages)
        if not over:
            self.waits.set()
        return over


def waiting(gate: Gate, layer: int, then: Callable[[], None]) -> "Future[None]":
    """Somebody waits for a layer of page 3; ``then`` happens once it does."""
    with ThreadPoolExecutor(1) as threads:
        future = threads.submit(gate.wait, layer, [3])
        assert gate.waits.wait(60)
        then()
    return future


def test_nobody_waits_outside_a_step() -> None:
    """What was computed before may be read at any time."""
    gate = Gate()
    gate.wait(0, [3])
    gate.begin(frozenset({3}))
    gate.end(broken=False)
    gate.wait(1, [3])


def test_other_pages_are_not_waited_for() -> None:
    """A step holds up only copies of what it writes."""
    gate = Gate()
    gate.begin(frozenset({3}))
    gate.wait(1, [4])


def test_layer_is_waited_for() -> None:
    """A layer may be read from the moment in which it is saved, while later ones are still computed."""
    gate = Gate()
    gate.begin(frozenset({3}))
    gate.saved("unknown")
    waiting(gate, 0, lambda: gate.saved("first")).result()
    gate.waits.clear()
    waiting(gate, 1, lambda: gate.end(broken=False)).result()


def test_next_step_forgets_what_was_saved() -> None:
    """A layer that was saved in one step is waited for again in the next."""
    gate = Gate()
    gate.begin(frozenset({3}))
    gate.saved("first")
    gate.end(broken=False)
    gate.begin(frozenset({3}))
    waiting(gate, 0, lambda: gate.saved("first")).result()


def test_broken_step_lets_nobody_read() -> None:
    """Whoever waits for a step that fails gets an error, and so does whoever asks later; a new step makes good."""
    gate = Gate()
    gate.begin(frozenset({3}))
    with pytest.raises(NotComputedError):
        waiting(gate, 0, lambda: gate.end(broken=True)).result()
    with pytest.raises(NotComputedError):
        gate.wait(0, [3, 4])
    gate.wait(0, [4])
    gate.begin(frozenset({3}))
    gate.end(broken=False)
    gate.wait(0, [3])


def test_wait_is_bounded() -> None:
    """A forward pass that never saves the layer does not hold a copying thread for ever."""
    gate = Gate(wait_s=0.01)
    gate.begin(frozenset({3}))
    with pytest.raises(NotComputedError, match=r"within 0\.01 s"):
        gate.wait(0, [3])
