"""Seeds run alone and in batches, and the totals name everything that must happen."""

from lab.simulator.options import Options
from lab.simulator.run import EVENTS, FAULTS, Outcome, run_options, run_seed, run_seeds, summarise


def test_a_batch_is_the_sum_of_its_seeds() -> None:
    """Worker processes find what one process finds."""
    heard: list[int] = []
    outcomes = run_seeds(range(4), workers=2, on_done=lambda outcome: heard.append(outcome.seed))
    assert heard == [0, 1, 2, 3]
    assert [outcome.events for outcome in outcomes] == [run_seed(seed).events for seed in range(4)]


def test_totals_name_what_never_happened() -> None:
    """A zero is shown, not left out."""
    summary = summarise([run_options(Options())])
    assert summary["violations"] == summary["stuck"] == 0
    faults, events = summary["faults"], summary["events"]
    assert isinstance(faults, dict)
    assert isinstance(events, dict)
    assert set(FAULTS) <= faults.keys()
    assert set(EVENTS) <= events.keys()
    assert faults["crashed"] == 0


def test_a_broken_promise_is_counted_by_its_kind() -> None:
    """What hangs is told from what is wrong."""
    summary = summarise([Outcome(1, "stuck: d0"), Outcome(2, "wrong bytes"), Outcome(3)])
    assert (summary["violations"], summary["stuck"]) == (1, 1)
    assert summary["failing_seeds"] == [{"seed": 1, "violation": "stuck: d0"}, {"seed": 2, "violation": "wrong bytes"}]
