"""``lab simulate`` says what it ran, what happened, and whether a promise was broken."""

import json

import pytest
from click.testing import CliRunner

from lab import simulate as command
from lab.simulate import simulate
from lab.simulator.run import Outcome


def test_a_batch_ends_with_one_json_object() -> None:
    """Counts on stdout, exit code 0."""
    result = CliRunner().invoke(simulate, ["--seeds", "3", "--workers", "1", "--json"])
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert (report["seeds"], report["violations"], report["stuck"]) == (3, 0, 0)


def test_one_seed_prints_its_options_and_its_trace() -> None:
    """Both on stderr, where they do not disturb the result."""
    result = CliRunner().invoke(simulate, ["--seed", "3", "--trace", "--json"])
    assert "seed = 3" in result.stderr
    assert "SUBSCRIBE" in result.stderr.upper()
    assert json.loads(result.stdout)["seeds"] == 1


def test_a_broken_promise_is_told_and_ends_with_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The seed that shows it is named."""
    monkeypatch.setattr(command, "run_seed", lambda seed, **_: Outcome(seed, "wrong bytes"))
    result = CliRunner().invoke(simulate, ["--seed", "7"])
    assert result.exit_code == 1
    assert "seed 7: wrong bytes" in result.stdout


def test_a_trace_needs_a_seed() -> None:
    """Thousands of traces help nobody."""
    assert CliRunner().invoke(simulate, ["--trace"]).exit_code == 2
