"""The soak in its shortest form; ``python -m lab soak --minutes 10`` is the real one."""

import json

import pytest
from click.testing import CliRunner

from lab.__main__ import main


@pytest.mark.slow
def test_a_short_soak_is_flat() -> None:
    """Under deaths, stops and bad weather nothing grows, nothing is left, every byte is right, and every count adds up."""
    result = CliRunner().invoke(main, ["soak", "--minutes", "0.25", "--seed", "3", "--json"])
    assert result.exit_code == 0, result.output
    value = json.loads(result.stdout)
    assert value["problems"] == []
    assert value["rooms"]["done"] > 0
    assert value["rooms"]["hung"] == 0
    assert value["bytes"]["checked"] == value["bytes"]["expected"] > 0
    assert sum(value["faults"].values()) > 0
