"""Lets the copies of a step's KV run beside its forward pass: each layer from the moment in which it has been saved.

A copy names the pages that it reads. If the step that runs writes any of them, the copy waits until that layer was saved, the
step has ended, or a bound has passed. A step that breaks never computed its pages: whoever waits for them gets an error.
"""

from collections.abc import Iterable
from threading import Condition


class NotComputedError(RuntimeError):
    """The KV that was to be copied does not exist (yet)."""


class StepGate:
    """The engine's thread begins, saves and ends; copying threads wait."""

    def __init__(self, layers: Iterable[str], wait_s: float) -> None:
        self._numbers = {name: number for number, name in enumerate(layers)}
        self._wait_s = wait_s
        self._changed = Condition()
        self._step = 0
        self._writes: frozenset[int] = frozenset()
        self._saved: set[int] = set()
        self._broken: set[int] = set()

    def begin(self, pages: frozenset[int]) -> None:
        """A step that writes these pages begins."""
        with self._changed:
            self._step += 1
            self._writes = pages
            self._saved.clear()
            self._broken -= pages

    def saved(self, layer: str) -> None:
        """The running step has written that layer."""
        with self._changed:
            number = self._numbers.get(layer)
            if number is not None:
                self._saved.add(number)
                self._changed.notify_all()

    def end(self, *, broken: bool) -> None:
        """The running step is over: everything that it writes is there, or nothing of it can be relied on."""
        with self._changed:
            if broken:
                self._broken |= self._writes
            self._writes = frozenset()
            self._changed.notify_all()

    def wait(self, layer: int, pages: Iterable[int]) -> None:
        """Return once that layer of these pages may be read. Raises ``NotComputedError``."""
        with self._changed:
            if not self._writes and not self._broken:
                return
            wanted, step = frozenset(pages), self._step
            if not self._changed.wait_for(lambda: self._is_over(step, layer, wanted), self._wait_s):
                raise NotComputedError(f"layer {layer} was not saved within {self._wait_s:g} s")
            if not self._broken.isdisjoint(wanted):
                raise NotComputedError("the step that was to compute it has failed")

    def _is_over(self, step: int, layer: int, pages: frozenset[int]) -> bool:
        return self._step != step or layer in self._saved or self._writes.isdisjoint(pages)
