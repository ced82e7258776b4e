"""Who is owed a watermark: against a model that keeps a queue per session, and at a bounded cost per free."""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from decode_service.fanout import WatermarkFanout

NAMES = st.sampled_from("abcdef")


def taken(fanout: WatermarkFanout, now: float = 0.0, budget: int = 100) -> list[str]:
    """Everybody who is sent to now."""
    return list(fanout.take(now, budget))


def make(*sessions: str) -> WatermarkFanout:
    """Sessions that are all up to date."""
    fanout = WatermarkFanout(retry_s=1.0, retry_limit_s=8.0)
    for session in sessions:
        assert fanout.register(session)
    taken(fanout)
    return fanout


def test_newcomer_is_owed_its_snapshot_once() -> None:
    """Registering owes the watermark at once, ahead of everybody; registering again changes nothing."""
    fanout = make("a", "b")
    fanout.mark()
    assert fanout.register("c")
    assert not fanout.register("c")
    assert taken(fanout, budget=0) == ["c"]
    assert not fanout.register("c")
    assert taken(fanout) == ["a", "b"]


def test_many_changes_are_one_send() -> None:
    """A session is owed the newest value, not every value."""
    fanout = make("a", "b")
    for _ in range(5):
        fanout.mark()
    assert fanout.owed_count == 2
    assert taken(fanout) == ["a", "b"]
    assert taken(fanout) == []


def test_waiting_sessions_go_first_and_outside_the_budget() -> None:
    """Whoever holds unwritten grants is sent to before the others and however small the budget is."""
    fanout = make(*"abcdef")
    fanout.set_waiting("d", waiting=True)
    fanout.mark()
    fanout.set_waiting("b", waiting=True)
    assert taken(fanout, budget=1) == ["d", "b", "a"]
    assert fanout.has_owed
    fanout.set_waiting("d", waiting=False)
    fanout.mark()
    got = taken(fanout)
    assert got[0] == "b"
    assert sorted(got) == list("abcdef")
    assert not fanout.has_owed


def test_blocked_session_is_retried_with_longer_waits() -> None:
    """A send that would block is tried again after 1, 2, 4, 8, 8 s; when the peer speaks the waits start again."""
    fanout = make("a")
    now = 0.0
    for wait in (1.0, 2.0, 4.0, 8.0, 8.0):
        fanout.set_aside("a", now)
        assert fanout.next_deadline() == now + wait
        assert taken(fanout, now + wait - 0.1) == []
        now += wait
        assert taken(fanout, now) == ["a"]
    fanout.heard_from("a")
    fanout.set_aside("a", now)
    assert fanout.next_deadline() == now + 1.0


def test_set_aside_costs_nothing_per_change() -> None:
    """Changes while a session is set aside neither touch it nor make it owed earlier."""
    fanout = make("a", "b")
    fanout.set_aside("a", 0.0)
    for _ in range(3):
        fanout.mark()
        assert taken(fanout, 0.5) == ["b"]
    assert fanout.owed_count == 1
    assert taken(fanout, 1.0) == ["a"]


def test_waiting_session_that_was_set_aside_comes_back_first() -> None:
    """When its time comes it goes ahead of the others."""
    fanout = make("a", "b")
    fanout.set_waiting("b", waiting=True)
    fanout.set_aside("b", 0.0)
    fanout.mark()
    assert taken(fanout, 1.0) == ["b", "a"]


def test_sent_elsewhere_is_owed_no_more() -> None:
    """A watermark that went out with a heartbeat's answer settles what was owed, also for one set aside."""
    fanout = make("a", "b")
    fanout.mark()
    fanout.set_aside("b", 0.0)
    for session in ("a", "b", "unknown"):
        fanout.sent(session)
    assert (taken(fanout, 99.0), fanout.owed_count, fanout.next_deadline()) == ([], 0, None)
    assert "unknown" not in fanout


def test_removed_session_is_forgotten_everywhere() -> None:
    """Nothing of it is left, in whichever state it was."""
    fanout = make("a", "b", "c", "d")
    fanout.set_waiting("a", waiting=True)
    fanout.set_aside("b", 0.0)
    fanout.mark()
    for session in "abcdx":
        fanout.remove(session)
        fanout.set_aside(session, 0.0)
    assert (len(fanout), taken(fanout, 99.0), fanout.next_deadline(), fanout._failures) == (0, [], None, {})


def test_nobody_waits_who_is_not_registered() -> None:
    """A fenced session may still be unproven in a grant: it is owed nothing for that, and takes no place."""
    fanout = make("a")
    fanout.remove("a")
    fanout.set_waiting("a", waiting=True)
    assert fanout._waiting == {}


def test_dead_subscribers_cost_a_free_nothing() -> None:
    """With 10,000 stopped subscribers and three that take part, 1,000 changes touch those three only."""
    fanout = make(*(f"dead-{n}" for n in range(10_000)), "x", "y", "z")
    for n in range(10_000):
        fanout.set_aside(f"dead-{n}", 0.0)
    fanout.set_waiting("z", waiting=True)
    for _ in range(1000):
        fanout.mark()
        first, *others = taken(fanout, 0.5)
        assert (first, sorted(others)) == ("z", ["x", "y"])
    assert fanout.owed_count == 10_000


@dataclass
class Model:
    """One session, told of every change."""

    owed: bool = True
    waiting: bool = False
    failures: int = 0
    aside_until: float | None = None
    history: list[str] = field(default_factory=list)


class FanoutMachine(RuleBasedStateMachine):
    """Any order of changes, sends and failures owes exactly what a flag per session would."""

    def __init__(self) -> None:
        super().__init__()
        self.fanout = WatermarkFanout(retry_s=1.0, retry_limit_s=4.0)
        self.model: dict[str, Model] = {}
        self.now = 0.0

    @rule(name=NAMES)
    def register(self, name: str) -> None:
        """A newcomer is owed; a known one is left alone."""
        assert self.fanout.register(name) == (name not in self.model)
        self.model.setdefault(name, Model())

    @rule(name=NAMES)
    def remove(self, name: str) -> None:
        """A session ends."""
        self.fanout.remove(name)
        self.model.pop(name, None)

    @rule(name=NAMES, waiting=st.booleans())
    def set_waiting(self, name: str, waiting: bool) -> None:
        """A session gets or loses unwritten grants."""
        if name in self.model:
            self.fanout.set_waiting(name, waiting)
            self.model[name].waiting = waiting

    @rule()
    def mark(self) -> None:
        """The watermark changes."""
        self.fanout.mark()
        for session in self.model.values():
            session.owed = True

    @rule(name=NAMES)
    def sent(self, name: str) -> None:
        """It was told on another occasion."""
        self.fanout.sent(name)
        if name in self.model:
            self.model[name].owed, self.model[name].aside_until = False, None

    @rule(name=NAMES)
    def fail(self, name: str) -> None:
        """A send to it would have blocked."""
        self.fanout.set_aside(name, self.now)
        if name in self.model:
            session = self.model[name]
            session.owed, session.aside_until = True, self.now + min(2.0**session.failures, 4.0)
            session.failures += 1

    @rule(name=NAMES)
    def hear(self, name: str) -> None:
        """It spoke."""
        self.fanout.heard_from(name)
        if name in self.model:
            self.model[name].failures = 0

    @rule(seconds=st.sampled_from([0.0, 0.5, 1.0, 3.0]), budget=st.integers(0, 6))
    def take(self, seconds: float, budget: int) -> None:
        """All waiting ones that are owed, and at most ``budget`` of the others, each once."""
        self.now += seconds
        got = taken(self.fanout, self.now, budget)
        assert len(got) == len(set(got))
        due = {n for n, s in self.model.items() if s.owed and (s.aside_until is None or s.aside_until <= self.now)}
        assert set(got) <= due
        assert {name for name in due if self.model[name].waiting} <= set(got)
        assert len(got) >= min(budget, len(due))
        for name in due:
            self.model[name].aside_until = None
        for name in got:
            self.model[name].owed = False

    @invariant()
    def agrees(self) -> None:
        """Membership, debts and the next deadline are the model's."""
        assert len(self.fanout) == len(self.model)
        assert all(name in self.fanout for name in self.model)
        assert self.fanout.owed_count == sum(session.owed for session in self.model.values())
        deadlines = [session.aside_until for session in self.model.values() if session.aside_until is not None]
        assert self.fanout.next_deadline() == min(deadlines, default=None)
        assert self.fanout.has_owed == any(s.owed and s.aside_until is None for s in self.model.values())


TestFanoutMachine = FanoutMachine.TestCase
TestFanoutMachine.settings = settings(max_examples=60, stateful_step_count=40)
