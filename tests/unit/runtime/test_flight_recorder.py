"""A daemon's flight recorder writes few files, only for its user, and when there is a reason."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from runtime.flight_file import read_flight
from runtime.flight_recorder import SIGNAL, STALL_DUMPS_APART_S, FlightLimits, FlightRecorder
from tests.unit.runtime.test_recorder import Counter

LIMITS = FlightLimits(max_bytes=1 << 20, max_entries=1000, max_dumps=3, stall_s=4.0)


class Daemon:
    """Two machines, and chunks that wait since moments that the test sets."""

    def __init__(self, folder: Path, limits: FlightLimits = LIMITS) -> None:
        self.flight = FlightRecorder("d", folder, limits, 2, clock=lambda: 0.0)
        self.machines = [Counter(), Counter()]
        self.since: list[float] = []
        for number, machine in enumerate(self.machines):
            self.flight.watch(f"m-{number}", machine, None, number, lambda: self.since)

    def look(self, now: float) -> None:
        """Let the loop come to this moment."""
        due = self.flight.next_deadline()
        if due is not None and due <= now:
            self.flight.tick(now)
            self.flight.close()


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """One whose writer is waited for."""
    made = Daemon(tmp_path)
    yield made
    made.flight.close()


def dumps(folder: Path) -> list[Path]:
    """What lies there, oldest first."""
    return sorted(folder.iterdir())


def test_a_dump_is_for_its_user_alone(daemon: Daemon, tmp_path: Path) -> None:
    """Mode 0600 whatever the umask, a name that says daemon and reason, and every machine in one file."""
    daemon.machines[1].add(3, 1.0)
    before = os.umask(0)
    try:
        path = daemon.flight.dump(SIGNAL)
    finally:
        os.umask(before)
    assert path is not None
    assert dumps(tmp_path) == [path]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.name.startswith("d.flight-")
    assert path.name.endswith("-signal.jsonl")
    assert [len(machine.entries) for machine in read_flight(path).machines] == [0, 1]


def test_only_the_latest_dumps_are_kept(daemon: Daemon, tmp_path: Path) -> None:
    """Beyond the limit the oldest goes; files of others are left alone."""
    (tmp_path / "e.flight-0-signal.jsonl").touch()
    written = [daemon.flight.dump(SIGNAL) for _ in range(5)]
    assert dumps(tmp_path) == [*written[2:], tmp_path / "e.flight-0-signal.jsonl"]


def test_a_dump_that_fails_is_logged(tmp_path: Path) -> None:
    """Without a place to write there is a line in the log, no file and no exception."""
    daemon = Daemon(tmp_path / "missing")
    with structlog.testing.capture_logs() as lines:
        assert daemon.flight.dump(SIGNAL) is None
    assert [line["event"] for line in lines] == ["flight_dump_failed"]


def test_nothing_is_recorded_without_memory(tmp_path: Path) -> None:
    """With a bound of 0 the machines are left as they are, and a dump says that there is none."""
    daemon = Daemon(tmp_path, FlightLimits(0, 1000, 3, 4.0))
    daemon.machines[0].add(1, 1.0)
    with structlog.testing.capture_logs() as lines:
        assert daemon.flight.dump(SIGNAL) is None
    assert [line["event"] for line in lines] == ["flight_not_recorded"]
    assert vars(daemon.machines[0]) == {"sum": 1}
    assert dumps(tmp_path) == []


def test_a_stall_is_dumped_at_doubled_waits(daemon: Daemon, tmp_path: Path) -> None:
    """A chunk that stands still is dumped at the limit and when its wait has doubled, never twice within a minute."""
    daemon.since = [100.0]
    daemon.machines[0].add(1, 100.0)
    seen = {}
    for now in range(100, 400):
        daemon.look(float(now))
        seen[now] = len(dumps(tmp_path))
    first = next(now for now, number in seen.items() if number)
    assert 104 <= first <= 105
    second = next(now for now, number in seen.items() if number == 2)
    assert first + STALL_DUMPS_APART_S <= second <= first + STALL_DUMPS_APART_S + 1
    assert seen[399] == 3


def test_what_moves_is_not_dumped(daemon: Daemon, tmp_path: Path) -> None:
    """Chunks that never wait long cause nothing, however many there are."""
    for now in range(100, 200):
        daemon.since = [now - 3.0, now - 1.0]
        daemon.machines[0].add(1, float(now))
        daemon.look(float(now))
    assert dumps(tmp_path) == []


def test_an_idle_daemon_is_not_woken(daemon: Daemon) -> None:
    """Once nothing waits, there is no deadline until something enters a machine again."""
    daemon.machines[0].add(1, 1.0)
    assert daemon.flight.next_deadline() is not None
    daemon.look(1.0)
    assert daemon.flight.next_deadline() is None
    daemon.machines[0].add(1, 2.0)
    assert daemon.flight.next_deadline() is not None
