"""The command plays what it is told, and passes only if all of it did."""

import io
from collections.abc import Awaitable

import pytest
from click.testing import CliRunner
from rich.console import Console

from lab.chaos.command import SCENARIOS, all_passed, chaos, chaos_json, error_line, play, print_chaos
from lab.chaos.scenario import Findings, Outcome, Result, Scenario
from lab.progress import PlainProgress

PASSED = Result("port_taken", Outcome.PASSED, 2.0, 0.5)
UNAVAILABLE = Result("link_down_within_lease", Outcome.UNAVAILABLE, 0.1, reason="no ip here: install it\nmore")


def test_every_scenario_has_its_own_name_and_claim() -> None:
    """Nothing is played twice under two names, and everything says what it shows."""
    claims = [scenario.claim for scenario in SCENARIOS.values()]
    assert len(SCENARIOS) >= 30
    assert all(claim.endswith(".") for claim in claims)
    assert all(name == scenario.name for name, scenario in SCENARIOS.items())


@pytest.mark.parametrize(("results", "passed"), [([], False), ([PASSED], True), ([PASSED, UNAVAILABLE], False)])
def test_what_could_not_be_played_is_not_a_pass(results: list[Result], passed: bool) -> None:
    """Only a run in which something was played, and all of it passed, has shown anything."""
    assert all_passed(results) is passed
    assert chaos_json(results)["succeeded"] is passed


def test_errors_are_listed_in_one_line_each() -> None:
    """The JSON object has every scenario, and a line for each that did not pass."""
    value = chaos_json([PASSED, UNAVAILABLE])
    assert value["scenarios"] == [PASSED.to_json(), UNAVAILABLE.to_json()]
    assert value["errors"] == ["link_down_within_lease: unavailable: no ip here: install it"]


def test_the_error_of_a_dead_daemon_is_its_last_word() -> None:
    """Where the reason shows the end of a log, the line has what the daemon said last, and no other daemon's log."""
    text = "decode daemon exited with status 1; the end of its log:\n  | starting\n  | error: no memory\nprefill0:\n  | ready"
    expected = "port_taken: failed: decode daemon exited with status 1; the end of its log: error: no memory"
    assert error_line(Result("port_taken", Outcome.FAILED, 1.0, reason=text)) == expected


def test_people_see_the_claim_that_does_not_hold() -> None:
    """The table names every scenario; below it stands what should have been shown."""
    out = io.StringIO()
    print_chaos([PASSED, UNAVAILABLE], Console(file=out, width=120))
    assert "0.50 s" in out.getvalue()
    assert f"what must hold: {SCENARIOS[UNAVAILABLE.name].claim}" in out.getvalue()


def test_scenarios_are_played_in_order() -> None:
    """Each result is there as soon as its scenario is over."""
    played: list[str] = []

    def scenario(name: str) -> Scenario:
        async def run() -> Findings:
            played.append(name)
            return Findings(0.0)

        def start() -> Awaitable[Findings]:
            return run()

        return Scenario(name, "it holds.", start)

    results = play([scenario("a"), scenario("b")], PlainProgress(Console(file=io.StringIO())))
    assert next(results).name == "a"
    assert played == ["a"]
    assert next(results).name == "b"


def test_an_unknown_scenario_is_refused() -> None:
    """A wrong name ends with status 2 and the right ones."""
    result = CliRunner().invoke(chaos, ["--scenario", "nothing"])
    assert result.exit_code == 2
    assert "port_taken" in result.output
