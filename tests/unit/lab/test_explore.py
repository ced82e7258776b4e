"""``lab explore`` prints its bounds, what it found, and whether that was everything."""

import json

import pytest
from click.testing import CliRunner
from rich.console import Console

from lab import explore as command
from lab.explore import explore_command, explored_json, print_explored, shapes
from lab.explore_search import Found


def test_bounds_and_counts_are_printed() -> None:
    """Without faults it is over in a moment, and exhausted."""
    result = CliRunner().invoke(explore_command, ["--faults", "0", "--json"])
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert report["exhausted"] is True
    assert report["violations"] == 0
    assert report["states"] == sum(search["states"] for search in report["searches"])
    rivals = report["searches"][0]
    assert (rivals["prefills"], rivals["decodes"], rivals["chunks"]) == (2, 1, 3)
    assert rivals["faults"] == {"together": 0, "crashes": 0, "aborts": 0}


def test_a_broken_promise_is_shown_with_its_path(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1, and every step on the way."""
    broken = [Found("rivals", violation="wrong bytes", path=["start", "p0 -> d: SUBSCRIBE"]), Found("writers", exhausted=True)]
    monkeypatch.setattr(command, "search_all", lambda *_: broken)
    assert CliRunner().invoke(explore_command, []).exit_code == 1
    print_explored(shapes(2), broken, Console())
    assert "rivals: p0 -> d: SUBSCRIBE\nrivals: wrong bytes" in capsys.readouterr().out
    assert explored_json(shapes(2), broken)["exhausted"] is False
