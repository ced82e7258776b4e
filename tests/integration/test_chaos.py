"""Faults in real processes. ``python -m lab chaos`` plays all scenarios; the ones here are quick and need no privileges."""

import asyncio
import json
import signal
import sys

import pytest
from click.testing import CliRunner

from lab.__main__ import main
from lab.chaos.carrying import begin
from lab.chaos.cluster import WAIT_S, send, suspend
from lab.chaos.command import SCENARIOS
from lab.chaos.copies import WRITERS, stepped, the_ring
from lab.chaos.scenario import Outcome, run_scenario
from lab.pair import Programs
from lab.stepping import DONE, HALF

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


def test_a_stopped_copy_would_overwrite_a_region_that_was_freed_on_a_guess() -> None:
    """With a decode daemon that takes a lapsed lease for proof, the same course of events changes bytes of others."""

    async def changed_bytes() -> int:
        trusting = Programs(decode=(sys.executable, "-m", "tests.integration.trusting_daemon", "serve"))
        async with stepped(programs=trusting) as (cluster, (victims_steps, others_steps)):
            await begin(cluster, 0, chunks=1)
            await victims_steps.until(HALF, WRITERS, WAIT_S, "the victim's copies are half done")
            await suspend(cluster.prefills[0])
            victims_steps.go(WRITERS)
            await begin(cluster, 1, chunks=1)
            await others_steps.until(HALF, WRITERS, WAIT_S, "the region is given away")
            others_steps.go()
            await others_steps.until(DONE, WRITERS, WAIT_S, "the region is written by its new owner")
            assert not victims_steps.seen(DONE)
            before = the_ring(cluster).read_bytes()
            send(cluster.prefills[0], signal.SIGCONT)
            await victims_steps.until(DONE, WRITERS, WAIT_S, "the stopped copies end")
            return sum(old != new for old, new in zip(before, the_ring(cluster).read_bytes(), strict=True))

    assert asyncio.run(changed_bytes()) > 0
