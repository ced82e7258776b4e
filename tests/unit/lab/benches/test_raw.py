"""The raw material is measured between processes; no size is judged."""

from lab.benches.raw import copy_rate, round_trips_s, two_copies_rate


def test_processes_start_together_and_report() -> None:
    """Raw copies and round trips in fresh processes yield positive numbers."""
    assert copy_rate(1 << 20, 1 << 16, 2) > 0
    assert two_copies_rate(1 << 20, 1 << 16, 2) > 0
    assert len(round_trips_s(5)) == 5
