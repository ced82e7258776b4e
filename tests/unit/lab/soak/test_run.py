"""The machines' counts of a stretch are compared with what the engines were told in it."""

from collections import Counter

from lab.soak.run import SoakReport, disagreements
from lab.soak.tally import Tally


def tally(failed: int, done: int) -> Tally:
    """So many parts ended on either side."""
    sides = ("decode", "prefill 0")
    return Tally(begun=Counter(sides), failed=Counter(dict.fromkeys(sides, failed)), done=Counter(dict.fromkeys(sides, done)))


def test_equal_counts_agree() -> None:
    """Only the difference over the stretch counts, not what was before it."""
    counted = Counter({"decode.failed": 3, "prefill 0.rooms_done": 10, "prefill 0.rooms_failed": 3, "grants": 99})
    assert disagreements(counted, tally(failed=2, done=5), tally(failed=5, done=15)) == []


def test_each_difference_is_named_with_both_numbers() -> None:
    """What a machine counted and no engine heard of, or the other way round."""
    counted = Counter({"decode.failed": 4, "prefill 0.rooms_done": 10, "prefill 0.rooms_failed": 3})
    assert disagreements(counted, tally(failed=0, done=0), tally(failed=3, done=11)) == [
        "decode.failed: the machine counted 4, the engine heard of 3",
        "prefill 0.rooms_done: the machine counted 10, the engine heard of 11",
    ]


def test_a_report_without_problems_has_succeeded() -> None:
    """The JSON object says so, and has every part even if the soak ended early."""
    report = SoakReport(0.5, seed=3)
    assert report.to_json()["succeeded"] is True
    report.problems.append("it grew")
    value = report.to_json()
    assert (value["succeeded"], value["problems"], value["before"], value["seed"]) == (False, ["it grew"], None, 3)
