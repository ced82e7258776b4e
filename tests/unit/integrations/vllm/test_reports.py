"""Each request is reported exactly once, and never before it was owed and settled."""

from threading import Thread

from hypothesis import given
from hypothesis import strategies as st

from integrations.vllm.reports import Reports


def test_one_life() -> None:
    """Owed, settled with its bad blocks, taken, and then forgotten."""
    reports = Reports()
    assert reports.owe("r")
    assert "r" in reports
    assert reports.take() == (frozenset(), frozenset())
    assert reports.settle("r", frozenset({3, 4}))
    assert "r" not in reports
    assert reports.take() == (frozenset({"r"}), frozenset({3, 4}))
    assert reports.take() == (frozenset(), frozenset())


def test_what_is_not_owed_is_never_reported() -> None:
    """An id that vLLM does not know would end its engine."""
    reports = Reports()
    assert not reports.settle("stranger", frozenset({1}))
    assert reports.take() == (frozenset(), frozenset())


@given(st.lists(st.sampled_from(["owe", "settle", "take"]), max_size=30))
def test_reported_as_often_as_owed(events: list[str]) -> None:
    """In any order of events each debt is paid at most once, and only after it was settled."""
    reports, owed, taken = Reports(), 0, 0
    for event in events:
        if event == "owe":
            owed += reports.owe("r")
        elif event == "settle":
            reports.settle("r")
        else:
            taken += len(reports.take()[0])
    assert taken <= owed
    reports.settle("r")
    assert taken + len(reports.take()[0]) == owed


def test_waiting_ends_with_the_first_report() -> None:
    """A step that computes nothing sleeps until something is due, and not longer."""
    reports = Reports()
    reports.owe("r")
    Thread(target=reports.settle, args=("r",)).start()
    assert reports.take(wait_s=60) == (frozenset({"r"}), frozenset())


def test_nothing_is_waited_for_where_nothing_is_owed() -> None:
    """An engine without transfers never sleeps."""
    assert Reports().take(wait_s=60) == (frozenset(), frozenset())
