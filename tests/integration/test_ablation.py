"""The experiment over real daemons: what each arm does, by mechanism."""

import json

import pytest
from click.testing import CliRunner

from lab.__main__ import main


@pytest.mark.slow
def test_each_arm_does_what_its_mechanism_says() -> None:
    """Without repair three arms stall at 4 of 11 with 3 in flight and the fourth survives; repair heals the untold session.

    What survives has said every token that one process says, and both times were measured for every request of the profile.
    """
    result = CliRunner().invoke(main, ["ablation", "--profile", "40", "--json"])
    assert result.exit_code == 0, result.output
    value = json.loads(result.stdout)
    stalled = {"warmup": {"completed": 4, "total": 11, "in_flight": 3}, "profile": None, "stalled": True}
    survived = {
        "warmup": {"completed": 11, "total": 11, "in_flight": 0},
        "profile": {"completed": 40, "total": 40, "ttft_coverage": 1.0, "itl_coverage": 1.0},
        "stalled": False,
    }
    expected = {
        "arms": {"neither": stalled, "restart_only": stalled, "snapshot_only": stalled, "both": survived},
        "arms_with_repair": {"neither": stalled, "restart_only": survived, "snapshot_only": stalled, "both": survived},
    }
    for table, arms in expected.items():
        found = {arm["name"]: {key: arm[key] for key in stalled} for arm in value[table]}
        assert found == arms
    for arm in (*value["arms"], *value["arms_with_repair"]):
        answered = 4 if arm["stalled"] else 51
        assert arm["tokens"]["requests_equal"] == arm["tokens"]["requests_compared"] == answered
    assert all(len(arm["blocked"]) == 24 for arm in value["arms"] if arm["stalled"]), "three requests on eight decode ranks"
