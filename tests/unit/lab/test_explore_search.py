"""A search sees every state once, and says how it came to a broken promise."""

import pytest

from lab import explore_search
from lab.explore import shapes
from lab.explore_search import Found, Ways, explore
from prefill_service.transfers import Transfers


def test_a_search_without_faults_is_exhausted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every state within the bounds was expanded, and it says so while it works."""
    heard: list[tuple[int, int]] = []
    monkeypatch.setattr(explore_search, "REPORT_EVERY", 50)

    def on_progress(found: Found, waiting: int) -> None:
        heard.append((found.states, waiting))

    found = explore(shapes(0)[1], on_progress)
    assert (found.exhausted, found.violation, found.path) == (True, "", [])
    assert found.states > 50
    assert heard[0][0] == 50


def test_ways_lead_back_to_the_start() -> None:
    """A state that is reached twice keeps its first way."""
    ways = Ways(remember=True)
    assert ways.add(1, None, "start")
    assert ways.add(2, 1, "step")
    assert not ways.add(2, 1, "other step")
    assert ways.path(2) == ["start", "step"]


def test_a_broken_promise_ends_the_search_with_its_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prefill that says nothing twice does not get over one loss."""
    monkeypatch.setattr(Transfers, "chunk_due", lambda *_: None)
    found = explore(shapes(1)[1])
    assert "failed although only messages were lost" in found.violation
    assert not found.exhausted
    assert any(step.endswith("is lost") for step in found.path)
