"""The simulated network loses, repeats, delays and holds what its options say, and nothing once it has healed."""

from collections import Counter
from random import Random

from lab.simulator.events import EventQueue
from lab.simulator.network import CONTROL, DATA, Cut, Envelope, Network
from lab.simulator.options import Faults, Options


def arrivals(
    faults: Faults, *, channel: str = CONTROL, cut: Cut | None = None, healed: bool = False
) -> tuple[list[int], Network]:
    """Which of twenty messages arrive, in which order."""
    events, seen = EventQueue(), list[int]()
    network = Network(events, Options(faults=faults), Random("network"), Counter())
    network.healed = healed
    if cut is not None:
        network.cut("a", "b", cut, both_ways=False)
    for number in range(20):
        network.send(Envelope("a", "b", channel, "KIND"), lambda number=number: seen.append(number))  # type: ignore[misc]
    while events.step(100.0):
        pass
    return seen, network


def test_without_faults_everything_arrives_in_order() -> None:
    """One connection keeps its order."""
    assert arrivals(Faults())[0] == list(range(20))
    assert arrivals(Faults(loss=1.0), healed=True)[0] == list(range(20))


def test_each_fault_does_what_it_says() -> None:
    """Loss loses, also by type; repetition repeats; reordering is for control messages; a full queue takes nothing."""
    assert arrivals(Faults(loss=1.0))[0] == []
    assert arrivals(Faults(target="KIND", target_loss=1.0))[0] == []
    assert len(arrivals(Faults(duplication=1.0))[0]) == 40
    assert arrivals(Faults(reordering=0.5))[0] != list(range(20))
    assert arrivals(Faults(reordering=0.5), channel=DATA)[0] == list(range(20))
    assert arrivals(Faults(send_full=1.0))[1].is_full()


def test_a_cut_drops_or_holds() -> None:
    """What is held arrives when the cut is over, in order."""
    assert arrivals(Faults(), cut=Cut(until=5.0, holds=False))[0] == []
    assert arrivals(Faults(), cut=Cut(until=5.0, holds=True))[0] == list(range(20))
