"""The phases of an orderly end, in virtual time."""

import pytest

from runtime.loop import EventLoop
from runtime.shutdown import LEAVE_S, Phase, Shutdown


class Daemon:
    """A daemon whose state a test sets, and which writes down what it is told."""

    def __init__(self) -> None:
        self.now = 0.0
        self.log: list[str] = []
        self.idle = False
        self.left = False

    def clock(self) -> float:
        """The time it was set to."""
        return self.now

    def begin_drain(self) -> None:
        """Write it down."""
        self.log.append("drain")

    def is_idle(self) -> bool:
        """As it was set."""
        return self.idle

    def begin_leaving(self) -> None:
        """Write it down."""
        self.log.append("leave")

    def has_left(self) -> bool:
        """As it was set."""
        return self.left


@pytest.fixture
def daemon() -> Daemon:
    """A busy daemon at time 0."""
    return Daemon()


def shutdown_of(daemon: Daemon) -> tuple[EventLoop, Shutdown]:
    """A shutdown of ten seconds of drain on a loop of the daemon's clock."""
    loop = EventLoop(daemon.clock)
    return loop, Shutdown(loop, daemon, 10.0)


def test_a_busy_daemon_drains_then_leaves(daemon: Daemon) -> None:
    """It leaves as soon as it is idle, and ends as soon as it has left; asking twice changes nothing."""
    loop, shutdown = shutdown_of(daemon)
    shutdown.flush(0.0)
    assert shutdown.next_deadline() is None
    shutdown.request()
    shutdown.request()
    shutdown.flush(0.0)
    assert (shutdown.phase, shutdown.next_deadline()) == (Phase.DRAINING, 10.0)
    daemon.idle = True
    shutdown.flush(1.0)
    assert (shutdown.phase, daemon.log) == (Phase.LEAVING, ["drain", "leave"])
    daemon.left = True
    shutdown.flush(2.0)
    assert (shutdown.phase, shutdown.next_deadline()) == (Phase.ENDED, None)
    loop.run()
    loop.close()


def test_a_daemon_that_never_becomes_idle_is_given_a_bounded_time(daemon: Daemon) -> None:
    """After the drain's limit it leaves all the same, and after the leaving's limit it ends."""
    loop, shutdown = shutdown_of(daemon)
    shutdown.request()
    shutdown.tick(9.9)
    assert daemon.log == ["drain"]
    daemon.now = 10.0
    shutdown.tick(10.0)
    assert (shutdown.phase, shutdown.next_deadline()) == (Phase.LEAVING, 10.0 + LEAVE_S)
    shutdown.tick(10.0 + LEAVE_S)
    assert shutdown.phase is Phase.ENDED
    loop.run()
    loop.close()
