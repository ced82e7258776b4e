"""How much a run measures, and where it says how far it is."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from lab.benches.rows import Row
from lab.progress import ProgressView


@dataclass(frozen=True, slots=True)
class Effort:
    """The short form answers within a minute and shows what has changed by a lot; the long form is for the tables."""

    short: bool
    view: ProgressView

    def pick(self, short: int, long: int) -> int:
        """The number for this form."""
        return short if self.short else long


class Bench(Protocol):
    """Measures one line of the list of benches."""

    def __call__(self, effort: Effort) -> Iterable[Row]:
        """Its rows, each as soon as it is known. Raises ``DaemonDied``."""


Benches = dict[str, Callable[[Effort], Iterable[Row]]]
