"""Exhaustive search: from the first state, every step from every state that was not seen before."""

from collections.abc import Callable
from dataclasses import dataclass, field

from lab.explore_state import State
from lab.explore_world import Shape, SmallWorld
from lab.simulator.memory import ViolationError

REPORT_EVERY = 5000


@dataclass(slots=True)
class Found:
    """What a search has shown. ``path`` leads to the violation, if there is one."""

    shape: str
    states: int = 0
    steps: int = 0
    ends: int = 0
    """States in which everything is over."""
    longest_s: float = 0.0
    """The latest virtual time at which everything was over."""
    exhausted: bool = False
    violation: str = ""
    path: list[str] = field(default_factory=list)


class Ways:
    """Which states were seen, and if wanted by which step each was reached first."""

    def __init__(self, *, remember: bool) -> None:
        self._seen: set[int] = set()
        self._came_from: dict[int, tuple[int | None, str]] | None = {} if remember else None

    def add(self, key: int, parent: int | None, step: str) -> bool:
        """Note a state; false if it was seen before."""
        if key in self._seen:
            return False
        self._seen.add(key)
        if self._came_from is not None:
            self._came_from[key] = (parent, step)
        return True

    def path(self, key: int) -> list[str]:
        """The steps that lead to a state; empty if they were not remembered."""
        steps: list[str] = []
        at: int | None = key
        while at is not None and self._came_from is not None:
            at, step = self._came_from[at]
            steps.append(step)
        return steps[::-1]


def explore(shape: Shape, on_progress: Callable[[Found, int], None] | None = None) -> Found:
    """Search everything within the bounds of a shape; a broken promise ends it, and is looked for again with its path."""
    found = _search(shape, on_progress, remember=False)
    return _search(shape, on_progress, remember=True) if found.violation else found


def _search(shape: Shape, on_progress: Callable[[Found, int], None] | None, *, remember: bool) -> Found:
    world, found, ways = SmallWorld(shape), Found(shape.name), Ways(remember=remember)
    first = world.start()
    ways.add(first.key(), None, "start")
    waiting: list[State] = [first]
    while waiting:
        state = waiting.pop()
        found.states += 1
        if on_progress is not None and found.states % REPORT_EVERY == 0:
            on_progress(found, len(waiting))
        found.violation = _expand(world, state, ways, waiting, found)
        if found.violation:
            found.path = ways.path(state.key())
            return found
    found.exhausted = True
    return found


def _expand(world: SmallWorld, state: State, ways: Ways, waiting: list[State], found: Found) -> str:
    """Take every step from a state, if it is not an end; returns what went wrong."""
    key = state.key()
    try:
        if world.is_over(state):
            found.ends += 1
            found.longest_s = max(found.longest_s, state.now)
            world.check_end(state)
            return ""
        for name, following in world.successors(state):
            found.steps += 1
            if ways.add(following.key(), key, name):
                waiting.append(following)
    except ViolationError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - whatever a machine raises is what the search is for
        return f"{type(error).__name__}: {error}"
    return ""
