"""The deadline table behaves like a plain dictionary that is searched, and back-off doubles up to its limit."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from protocol.timers import Backoff, Timers

keys = st.integers(0, 6)
times = st.integers(0, 20).map(float)


class TimersAgainstModel(RuleBasedStateMachine):
    """Every answer of ``Timers`` equals that of a dictionary from key to (deadline, order of setting)."""

    def __init__(self) -> None:
        super().__init__()
        self.timers: Timers[int] = Timers()
        self.model: dict[int, tuple[float, int]] = {}
        self.serial = 0

    @rule(key=keys, at=times)
    def set(self, key: int, at: float) -> None:
        """Set or replace a deadline."""
        self.timers.set(key, at)
        self.serial += 1
        self.model[key] = (at, self.serial)

    @rule(key=keys)
    def cancel(self, key: int) -> None:
        """Cancel a deadline, known or not."""
        self.timers.cancel(key)
        self.model.pop(key, None)

    @rule(now=times)
    def pop_due(self, now: float) -> None:
        """Everything due comes out, in the order of its deadlines."""
        due = sorted((key for key, (at, _) in self.model.items() if at <= now), key=lambda key: self.model[key])
        assert self.timers.pop_due(now) == due
        for key in due:
            del self.model[key]

    @rule(key=keys, at=times)
    def change_often(self, key: int, at: float) -> None:
        """A deadline that is replaced again and again does not make the table grow."""
        for later in range(200):
            self.set(key, at + later)

    @invariant()
    def agrees(self) -> None:
        """Size, members and next deadline are the model's, and memory follows the number of keys."""
        assert len(self.timers) == len(self.model)
        assert all((key in self.timers) == (key in self.model) for key in range(7))
        assert self.timers.next() == min((at for at, _ in self.model.values()), default=None)
        assert len(self.timers._heap) <= 64 + 2 * 7 + 1


TestTimersAgainstModel = TimersAgainstModel.TestCase


def test_equal_deadlines_come_in_the_order_of_setting() -> None:
    """Ties are broken by who was set first, never by comparing keys."""
    timers: Timers[object] = Timers()
    first, second = object(), object()
    timers.set(first, 1.0)
    timers.set(second, 1.0)
    assert timers.pop_due(1.0) == [first, second]
    assert timers.next() is None


@given(st.floats(0.001, 10), st.floats(1, 100), st.integers(0, 2**32))
def test_backoff_doubles_up_to_its_limit(first_s: float, factor: float, seed: int) -> None:
    """Each interval lies between four fifths of the nominal one and all of it; the nominal one doubles up to the limit."""
    limit_s = first_s * factor
    backoff, random = Backoff(first_s, limit_s), Random(seed)
    for nominal in (min(first_s * 2.0**tries, limit_s) for tries in range(40)):
        assert 0.8 * nominal <= backoff.next_interval(random) <= nominal


def test_backoff_never_overflows_and_can_be_reset() -> None:
    """A retry that has gone on for ever still has a finite interval, and a reset starts over."""
    backoff, random = Backoff(0.2, 2.0, tries=10**9), Random(1)
    assert 1.6 <= backoff.next_interval(random) <= 2.0
    backoff.reset()
    assert 0.16 <= backoff.next_interval(random) <= 0.2
