"""A peer's budget: a burst at most, refilled with time, in bounded memory."""

from runtime.budget import MAX_PEERS, PeerBudget


def test_a_burst_then_the_rate() -> None:
    """The full bucket is spent, then tokens come back at the rate and never beyond the burst."""
    budget = PeerBudget(rate=2.0, burst=3.0)
    assert [budget.spend("p", 0.0) for _ in range(4)] == [True, True, True, False]
    assert not budget.has_tokens("p", 0.4)
    assert budget.has_tokens("p", 0.5)
    assert [budget.spend("p", 0.5), budget.spend("p", 0.5)] == [True, False]
    assert [budget.spend("p", 100.0) for _ in range(4)] == [True, True, True, False]


def test_peers_do_not_share() -> None:
    """One that has spent everything takes nothing from another."""
    budget = PeerBudget(rate=1.0, burst=1.0)
    assert (budget.spend("a", 0.0), budget.spend("a", 0.0), budget.spend("b", 0.0)) == (True, False, True)


def test_memory_is_bounded() -> None:
    """Any number of peers leaves at most ``MAX_PEERS`` in the table: those that were seen last."""
    budget = PeerBudget(rate=1.0, burst=1.0)
    for peer in range(2 * MAX_PEERS):
        budget.spend(peer, 0.0)
    assert budget.has_tokens(0, 0.0)
    assert not budget.has_tokens(2 * MAX_PEERS - 1, 0.0)
