"""The orderly end of a daemon: take nothing new, let what runs finish, give up on the rest, leave."""

from collections.abc import Callable
from enum import Enum
from typing import Protocol

from runtime.logs import logger
from runtime.loop import EventLoop

LEAVE_S = 5.0
"""How long running copies and last words may take once everything is aborted."""


class Phase(Enum):
    """Where the end has got to."""

    RUNNING = "running"
    DRAINING = "draining"
    LEAVING = "leaving"
    ENDED = "ended"


class Ending(Protocol):
    """What the daemon does in each phase. Every call comes on the loop's thread."""

    def begin_drain(self) -> None:
        """Refuse what is new and tell the peers."""

    def is_idle(self) -> bool:
        """Whether nothing is under way any more."""

    def begin_leaving(self) -> None:
        """Abort what is left and say goodbye."""

    def has_left(self) -> bool:
        """Whether no worker of ours runs and nothing is left to say."""


class Shutdown:
    """Moves through the phases; one of the loop's timed objects. ``request`` starts it, any number of times."""

    def __init__(self, loop: EventLoop, ending: Ending, drain_s: float) -> None:
        self.phase = Phase.RUNNING
        self._loop = loop
        self._ending = ending
        self._drain_s = drain_s
        self._deadline: float | None = None
        self._log = logger()

    def request(self) -> None:
        """Begin. Loop thread."""
        if self.phase is Phase.RUNNING:
            self._enter(Phase.DRAINING, self._drain_s, self._ending.begin_drain)

    def next_deadline(self) -> float | None:
        """When the present phase has lasted long enough."""
        return self._deadline

    def tick(self, now: float) -> None:
        """The present phase has lasted long enough."""
        if self._deadline is None or now < self._deadline:
            return
        if self.phase is Phase.DRAINING:
            self._log.warning("drain_timed_out", drain_s=self._drain_s)
            self._leave()
        elif self.phase is Phase.LEAVING:
            self._end()

    def flush(self, now: float) -> None:  # noqa: ARG002 - the loop's interface
        """See after every turn whether the next phase has come."""
        if self.phase is Phase.DRAINING and self._ending.is_idle():
            self._leave()
        if self.phase is Phase.LEAVING and self._ending.has_left():
            self._end()

    def _enter(self, phase: Phase, lasts_s: float, begin: Callable[[], None]) -> None:
        self.phase = phase
        self._deadline = self._loop.clock() + lasts_s
        self._log.info("shutdown_phase_entered", phase=phase.value)
        begin()

    def _leave(self) -> None:
        self._enter(Phase.LEAVING, LEAVE_S, self._ending.begin_leaving)

    def _end(self) -> None:
        self.phase = Phase.ENDED
        self._deadline = None
        self._loop.stop()
