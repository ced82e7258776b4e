"""The gate lets pass what the largest watermark lets pass, oldest first, and says what the rest waits for."""

from hypothesis import given
from hypothesis import strategies as st

from prefill_service.gate import Wait, WatermarkGate
from protocol.watermark import START, Watermark, is_watermark_ready

places = st.tuples(st.integers(0, 4), st.integers(1, 100))


def test_round_zero_passes_at_once() -> None:
    """A ring that was never full needs no watermark."""
    gate = WatermarkGate[str]()
    assert gate.admit("a", 0, 100)
    assert len(gate) == 0


def test_drained_ring_of_an_old_allocator_blocks() -> None:
    """Round 1 up to byte 70 does not pass at watermark (0, 60), and passes once the round has moved on."""
    gate = WatermarkGate[str]()
    gate.advance(Watermark(0, 60))
    assert not gate.admit("a", 1, 70)
    assert gate.advance(Watermark(1, 0)) == ["a"]


def test_newcomer_needs_the_snapshot() -> None:
    """A grant of round 3 waits for a session that believes (0, 0), and passes with the snapshot (3, 0)."""
    gate = WatermarkGate[str]()
    assert not gate.admit("a", 3, 40)
    assert gate.advance(Watermark(3, 0)) == ["a"]


def test_smaller_or_equal_watermark_changes_nothing() -> None:
    """Late and repeated frames neither lower the watermark nor let anything pass."""
    gate = WatermarkGate[str]()
    gate.advance(Watermark(2, 50))
    assert not gate.admit("a", 3, 60)
    for old in (Watermark(2, 50), Watermark(2, 49), Watermark(1, 99), START):
        assert gate.advance(old) == []
    assert gate.watermark == Watermark(2, 50)


def test_a_waiting_grant_holds_up_nobody() -> None:
    """What need not wait passes at once although an earlier one waits."""
    gate = WatermarkGate[str]()
    assert not gate.admit("later round", 2, 10)
    assert gate.admit("this round", 1, 30) is False
    assert gate.advance(Watermark(0, 30)) == ["this round"]
    assert gate.first() == "later round"


def test_withdrawn_grant_is_never_returned() -> None:
    """A grant that was taken back does not come out, and its key may be used for another one."""
    gate = WatermarkGate[str]()
    gate.admit("a", 2, 50)
    gate.withdraw("a")
    gate.withdraw("unknown")
    assert gate.first() is None
    gate.admit("a", 3, 10)
    assert gate.advance(Watermark(1, 50)) == []
    assert gate.advance(Watermark(2, 10)) == ["a"]


def test_explain_names_both_watermarks() -> None:
    """The reason why a grant waits says what it needs and what was heard."""
    gate = WatermarkGate[str]()
    gate.advance(Watermark(1, 40))
    assert gate.explain(2, 40) is None
    assert gate.explain(2, 70) == Wait(Watermark(1, 70), Watermark(1, 40))
    assert str(gate.explain(2, 70)) == "needs watermark (1, 70), has (1, 40)"


def test_heap_does_not_grow_with_withdrawals() -> None:
    """Grants that come and go leave nothing behind."""
    gate = WatermarkGate[int]()
    for number in range(2000):
        gate.admit(number, 5, 1 + number % 90)
        gate.withdraw(number)
    assert len(gate) == 0
    assert len(gate._heap) < 100


@given(st.lists(places, max_size=12), st.lists(places, max_size=12))
def test_gate_agrees_with_the_rule(grants: list[tuple[int, int]], watermarks: list[tuple[int, int]]) -> None:
    """Whatever comes in whatever order, exactly those are held that the rule refuses, and they come out oldest first."""
    gate = WatermarkGate[int]()
    held = {key: place for key, place in enumerate(grants) if not gate.admit(key, *place)}
    largest: tuple[int, int] = START
    for watermark in watermarks:
        passed = gate.advance(Watermark(*watermark))
        largest = max(largest, watermark)
        assert [held[key] for key in passed] == sorted(held[key] for key in passed)
        for key in passed:
            del held[key]
        assert not any(is_watermark_ready(largest, *place) for place in held.values())
    assert len(gate) == len(held)
    assert gate.watermark == largest
