"""What a bench says: one row for each number, with the limit of the same run, their ratio, and the target it is held to.

A row judges itself; nothing else in the laboratory and no test does. Numbers of different runs do not compare, ratios do.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """A bound on a row's ``ratio`` or on its ``value``, from above or from below."""

    of: str
    relation: str
    bound: float

    def holds(self, value: float, ratio: float | None) -> bool:
        """Whether the row keeps it. One without a limit has no ratio and keeps no bound on it."""
        number = value if self.of == "value" else ratio
        if number is None or math.isnan(number):
            return False
        return number <= self.bound if self.relation == "<=" else number >= self.bound

    def __str__(self) -> str:
        return f"{self.of} {self.relation} {self.bound:g}"


def ratio_at_most(bound: float) -> Target:
    """The value is at most ``bound`` limits."""
    return Target("ratio", "<=", bound)


def ratio_at_least(bound: float) -> Target:
    """The value is at least ``bound`` limits."""
    return Target("ratio", ">=", bound)


def value_at_most(bound: float) -> Target:
    """The value itself, in the row's unit, is at most ``bound``."""
    return Target("value", "<=", bound)


def value_at_least(bound: float) -> Target:
    """The value itself, in the row's unit, is at least ``bound``."""
    return Target("value", ">=", bound)


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement. ``limit`` is in the same unit and of the same run; without a target the number is only published."""

    name: str
    value: float
    unit: str
    limit: float | None = None
    targets: tuple[Target, ...] = ()
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """The value in limits."""
        return self.value / self.limit if self.limit else None

    @property
    def met(self) -> bool | None:
        """Whether every target is kept; ``None`` where there is none."""
        return all(target.holds(self.value, self.ratio) for target in self.targets) if self.targets else None

    @property
    def target(self) -> str | None:
        """The targets in words."""
        return ", ".join(map(str, self.targets)) or None

    def to_json(self) -> dict[str, object]:
        """The JSON object of one row."""
        shown: dict[str, object] = {
            "name": self.name,
            "value": rounded(self.value),
            "unit": self.unit,
            "limit": rounded(self.limit),
            "ratio": rounded(self.ratio),
            "target": self.target,
            "met": self.met,
        }
        return shown | ({"note": self.note} if self.note else {})


def rounded(number: float | None, digits: int = 4) -> float | None:
    """``number`` with so many significant digits."""
    if number is None or not math.isfinite(number) or number == 0:
        return number if number is None or math.isfinite(number) else None
    return round(number, max(0, digits - 1 - math.floor(math.log10(abs(number)))))


def percentile(numbers: Sequence[float], percent: float) -> float:
    """The smallest number that is not below ``percent`` of all of them (nearest rank). ``ValueError`` without numbers."""
    if not numbers:
        raise ValueError("no numbers")
    return sorted(numbers)[max(0, math.ceil(len(numbers) * percent / 100) - 1)]


def jain(shares: Sequence[float]) -> float:
    """Jain's fairness index: 1 if all shares are equal, 1/n if one has everything (Jain, Chiu, Hawe, 1984)."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 0.0


def median(numbers: Sequence[float]) -> float:
    """The median."""
    return statistics.median(numbers)
