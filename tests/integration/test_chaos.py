"""Faults in real processes. ``python -m lab chaos`` plays all scenarios; the ones here are quick and need no privileges."""

import asyncio
import json

import pytest
from click.testing import CliRunner

from lab.__main__ import main
from lab.chaos.command import SCENARIOS
from lab.chaos.scenario import Outcome, run_scenario

QUICK = (
    "prefill_killed_shm",
    "decode_killed_zmq",
    "prefill_stopped_within_lease_shm",
    "decode_stopped_beyond_lease_shm",
    "prefill_stopped_in_copy",
    "prefill_killed_in_copy",
    "room_aborted_in_copy",
    "proxy_storm",
    "descriptors_exhausted_on_prefill",
    "descriptors_too_few_at_start",
)


@pytest.mark.parametrize("name", QUICK)
def test_the_scenario_passes(name: str) -> None:
    """What the scenario claims holds, in bounded time."""
    result = asyncio.run(run_scenario(SCENARIOS[name]))
    assert result.outcome is Outcome.PASSED, f"{SCENARIOS[name].claim}\n{result.reason}"


def test_the_command_prints_one_object() -> None:
    """Stdout is one JSON object with the scenarios that were asked for; progress goes to stderr."""
    result = CliRunner().invoke(main, ["chaos", "--scenario", "port_taken", "--json"])
    assert result.exit_code == 0, result.output
    value = json.loads(result.stdout)
    assert [(row["name"], row["outcome"]) for row in value["scenarios"]] == [("port_taken", "passed")]
    assert value["scenarios"][0]["recovery_s"] >= 0
    assert value["errors"] == []
    assert "port_taken: passed" in result.stderr
