"""The tally of a soak notices everything that does not add up."""

from collections.abc import Callable

import pytest

from lab.chaos.carrying import Ending
from lab.soak.tally import Tally


def ending(code: str = "") -> Ending:
    """One that is done without a code, failed with one."""
    return Ending("decode 0", not code, code, code, 0.0)


def consistent() -> Tally:
    """Two rooms of two parts each, one done and one lost."""
    tally = Tally(rooms=2, rooms_done=1, rooms_failed=1, bytes_expected=10, bytes_checked=10)
    for code in ("", "disconnected"):
        for side in ("decode", "prefill 0"):
            tally.begun[side] += 1
            tally.count_part(side, ending(code))
    return tally


def test_what_adds_up_has_no_problems() -> None:
    """Done, failed and lost parts make up those begun, and every byte was compared."""
    tally = consistent()
    assert tally.problems() == []
    assert tally.to_json()["parts"] == {
        side: {"begun": 2, "done": 1, "failed": 0, "lost": 1} for side in ("decode", "prefill 0")
    }


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda tally: tally.rooms_hung.append("room-7"), "room-7 was not over in time"),
        (lambda tally: setattr(tally, "rooms_failed", 0), "2 rooms begun, 1 done and 0 failed"),
        (lambda tally: tally.begun.update(["decode"]), "decode: 3 parts begun, 2 ended"),
        (lambda tally: setattr(tally, "bytes_checked", 9), "9 bytes compared, 10 expected"),
        (lambda tally: setattr(tally, "bytes_wrong", 1), "1 bytes are wrong"),
    ],
)
def test_each_kind_of_disagreement_is_named(spoil: Callable[[Tally], None], problem: str) -> None:
    """A hung room, a room or part without an end, bytes not compared and bytes wrong: each is a problem."""
    tally = consistent()
    spoil(tally)
    assert problem in tally.problems()


def test_failures_are_counted_by_reason() -> None:
    """Parts that a daemon failed are told apart by code, and from those that died with it."""
    tally = Tally()
    for code in ("aborted", "aborted", "prefill_gone", "closed"):
        tally.count_part("decode", ending(code))
    assert (tally.failed["decode"], tally.lost["decode"]) == (3, 1)
    assert tally.to_json()["failures"] == {"aborted": 2, "prefill_gone": 1}
