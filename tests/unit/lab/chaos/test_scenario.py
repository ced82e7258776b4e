"""One scenario: every way in which it can end is told apart, and none of them is silence."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from lab.chaos.expectations import NotAsExpected, Unavailable
from lab.chaos.scenario import Findings, Outcome, Scenario, run_scenario
from lab.process import DaemonDied
from runtime.engine_protocol import EngineError


def raising(error: Exception) -> Callable[[], Awaitable[Findings]]:
    """A scenario that ends with this error."""

    async def play() -> Findings:
        raise error

    return play


async def passing() -> Findings:
    """A scenario in which all goes well."""
    return Findings(1.23456, {"count": 3, "seconds": 0.98765})


async def hanging() -> Findings:
    """A scenario that never ends by itself."""
    await asyncio.Event().wait()
    raise AssertionError


@pytest.mark.parametrize(
    ("play", "outcome", "reason"),
    [
        pytest.param(raising(NotAsExpected("two bytes differ")), Outcome.FAILED, "two bytes differ", id="expectation"),
        pytest.param(raising(DaemonDied("it exited")), Outcome.FAILED, "it exited", id="death"),
        pytest.param(raising(EngineError("busy", "try later")), Outcome.FAILED, "busy", id="refusal"),
        pytest.param(raising(Unavailable("no ip here")), Outcome.UNAVAILABLE, "no ip here", id="unavailable"),
        pytest.param(hanging, Outcome.HUNG, "TimeoutError", id="hang"),
    ],
)
def test_what_does_not_pass_has_a_reason(play: Callable[[], Awaitable[Findings]], outcome: Outcome, reason: str) -> None:
    """Each ending has its outcome and its reason, and no recovery."""
    result = asyncio.run(run_scenario(Scenario("x", "it holds", play, limit_s=0.2)))
    assert (result.outcome, result.recovery_s) == (outcome, None)
    assert reason in result.reason
    assert result.to_json()["reason"] == result.reason


def test_a_pass_reports_what_it_measured() -> None:
    """Name, outcome, recovery and facts, rounded to milliseconds; no reason."""
    value = asyncio.run(run_scenario(Scenario("x", "it holds", passing))).to_json()
    assert value.pop("duration_s") is not None
    assert value == {"name": "x", "outcome": "passed", "recovery_s": 1.235, "facts": {"count": 3, "seconds": 0.988}}


def test_a_bug_in_a_scenario_is_not_an_outcome() -> None:
    """An error that no scenario means to raise ends the run."""
    with pytest.raises(ZeroDivisionError):
        asyncio.run(run_scenario(Scenario("x", "it holds", raising(ZeroDivisionError()))))


def test_notes_are_part_of_the_reason() -> None:
    """The ends of the daemons' logs, attached on the way, are kept."""
    error = NotAsExpected("two bytes differ")
    error.add_note("decode.log: something")
    result = asyncio.run(run_scenario(Scenario("x", "it holds", raising(error))))
    assert result.reason == "two bytes differ\ndecode.log: something"
