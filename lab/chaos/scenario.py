"""What a scenario is, how one is run within its bound, and what is reported of it."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum

from lab.chaos.cluster import Cluster, ClusterOptions
from lab.chaos.expectations import NotAsExpected, Unavailable
from lab.process import DaemonDied, tail
from lab.workspace import Workspace
from runtime.engine_protocol import EngineError

Facts = Mapping[str, object]


class Outcome(StrEnum):
    """How a scenario ended."""

    PASSED = "passed"
    FAILED = "failed"
    """Something that must hold did not."""
    HUNG = "hung"
    """It was not over within its bound."""
    UNAVAILABLE = "unavailable"
    """This machine cannot play it: an error, since nothing was shown."""


@dataclass(frozen=True, slots=True)
class Findings:
    """What a passed scenario measured.

    ``recovery_s`` runs from the end of the fault (the daemon answers again, the signal to continue, the link is up; the fault
    itself where it does not end) until the first new room, or every room that was held up, has gone through.
    """

    recovery_s: float
    facts: Facts = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A fault and what must hold. ``limit_s`` bounds the whole of it, far above what it takes."""

    name: str
    claim: str
    play: Callable[[], Awaitable[Findings]]
    limit_s: float = 90.0


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one scenario."""

    name: str
    outcome: Outcome
    duration_s: float
    recovery_s: float | None = None
    facts: Facts = field(default_factory=dict)
    reason: str = ""

    def to_json(self) -> dict[str, object]:
        """The JSON object of one scenario."""
        value: dict[str, object] = {
            "name": self.name,
            "outcome": self.outcome.value,
            "recovery_s": None if self.recovery_s is None else round(self.recovery_s, 3),
            "duration_s": round(self.duration_s, 3),
            "facts": {key: round(fact, 3) if isinstance(fact, float) else fact for key, fact in self.facts.items()},
        }
        return value | ({"reason": self.reason} if self.reason else {})


@asynccontextmanager
async def deployed(options: ClusterOptions | None = None) -> AsyncIterator[Cluster]:
    """A running cluster in a directory of its own. What goes wrong inside gets the ends of the daemons' logs as notes."""
    with Workspace() as workspace:
        try:
            async with Cluster(workspace, options or ClusterOptions()) as cluster:
                yield cluster
        except BaseException as error:
            for log in sorted(workspace.logs.iterdir()):
                error.add_note(f"{log.stem}:\n{tail(log, 3)}")
            raise


async def run_scenario(scenario: Scenario) -> Result:
    """Play it once, to its end or its bound. Nothing of it runs afterwards."""
    began = time.monotonic()

    def result(outcome: Outcome, error: BaseException | None = None) -> Result:
        text = "" if error is None else "\n".join([str(error) or type(error).__name__, *getattr(error, "__notes__", ())])
        return Result(scenario.name, outcome, time.monotonic() - began, reason=text)

    try:
        async with asyncio.timeout(scenario.limit_s):
            findings = await scenario.play()
    except Unavailable as error:
        return result(Outcome.UNAVAILABLE, error)
    except TimeoutError as error:
        return result(Outcome.HUNG, error)
    except (NotAsExpected, DaemonDied, EngineError, OSError) as error:
        return result(Outcome.FAILED, error)
    return Result(scenario.name, Outcome.PASSED, time.monotonic() - began, findings.recovery_s, findings.facts)
