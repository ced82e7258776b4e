"""What a mutant is: the shipped machines without one rule, which is patched out of them in tests; the product has no switch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

Patch = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Mutant:
    """The machines without ``rule``."""

    name: str
    rule: str
    apply: Patch


class Register:
    """Collects mutants by name."""

    def __init__(self) -> None:
        self.mutants: dict[str, Mutant] = {}

    def without(self, rule: str) -> Callable[[Patch], Patch]:
        """Register the decorated patch as the mutant without that rule."""

        def add(apply: Patch) -> Patch:
            self.mutants[apply.__name__] = Mutant(apply.__name__, rule, apply)
            return apply

        return add


def nothing(*_: Any, **__: Any) -> None:
    """A deed that is left undone."""
