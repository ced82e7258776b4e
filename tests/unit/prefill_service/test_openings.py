"""A plane that takes its time holds nobody up, is given up in time, and is closed if it opens after that."""

import threading
from collections.abc import Iterator

import pytest

from prefill_service.openings import OPEN_LIMIT_S, Opened, Openings
from prefill_service.outputs import OpenPlane
from prefill_service.writers.arena import Arena
from prefill_service.writers.base import PlaneOpenError
from prefill_service.writers.one_sided import OneSidedWriter
from protocol.layout import ModelLayout, RankLayout
from runtime.loop import EventLoop
from tests.unit.one_sided import ScriptedEngine

ORDER = OpenPlane("peer", "session", "nixl", {}, 10, RankLayout(ModelLayout(()), 0, 1, 0, 1, (0, 0)))


class Bench:
    """Openings, the loop they report to, and what they reported."""

    def __init__(self) -> None:
        self.now = 100.0
        self.loop = EventLoop(lambda: self.now)
        self.reported: list[tuple[OpenPlane, Opened]] = []
        self.openings = Openings(self.loop, lambda order, opened: self.reported.append((order, opened)))
        self.engine = ScriptedEngine()
        self.writer = OneSidedWriter("nixl", self.engine, Arena(64))

    def turn_until(self, number: int) -> None:
        """Serve the loop until that many planes were closed or reported."""
        while self.engine.closed + len(self.reported) < number:
            self.loop.turn(1.0)


@pytest.fixture
def bench() -> Iterator[Bench]:
    """A bench whose loop is closed at the end."""
    made = Bench()
    yield made
    made.loop.close()


def test_an_opened_plane_is_reported_on_the_loops_thread(bench: Bench) -> None:
    """The opening itself runs elsewhere."""
    threads: list[int] = []

    def opening() -> OneSidedWriter:
        threads.append(threading.get_ident())
        return bench.writer

    bench.openings.start(ORDER, opening)
    bench.turn_until(1)
    assert bench.reported == [(ORDER, bench.writer)]
    assert threads != [threading.get_ident()]
    assert bench.openings.next_deadline() is None


def test_a_plane_that_does_not_open_is_reported_with_its_reason(bench: Bench) -> None:
    """The order comes back with the error."""

    def opening() -> OneSidedWriter:
        raise PlaneOpenError("no route")

    bench.openings.start(ORDER, opening)
    bench.turn_until(1)
    ((order, opened),) = bench.reported
    assert (order, str(opened)) == (ORDER, "no route")


def test_a_plane_that_hangs_is_given_up_and_closed_if_it_opens_late(bench: Bench) -> None:
    """Its order is reported once, as failed; what comes after that is of no use to anyone."""
    opens = threading.Event()

    def opening() -> OneSidedWriter:
        opens.wait()
        return bench.writer

    bench.openings.start(ORDER, opening)
    assert bench.openings.next_deadline() == bench.now + OPEN_LIMIT_S
    bench.openings.tick(bench.now + OPEN_LIMIT_S)
    ((_, opened),) = bench.reported
    assert "did not open within 10 s" in str(opened)
    opens.set()
    bench.turn_until(2)
    assert (len(bench.reported), bench.engine.closed) == (1, 1)


def test_closing_forgets_what_still_opens(bench: Bench) -> None:
    """Nothing is reported afterwards, and nothing stays open."""
    bench.openings.start(ORDER, lambda: bench.writer)
    bench.openings.close()
    bench.turn_until(1)
    assert (bench.reported, bench.engine.closed) == ([], 1)
