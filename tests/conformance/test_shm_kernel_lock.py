"""The ``shm`` plane's proof that nobody writes any more, against real processes and real signals."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from decode_service.regions.base import Quietness
from decode_service.regions.memory import SharedRing, segment_name
from decode_service.regions.shm import ShmPlane
from prefill_service.writers.base import PlaneOpenError
from prefill_service.writers.shm import ShmWriter
from tests.conformance.planes import RING_BYTES, SESSION

Start = Callable[[], "subprocess.Popen[str]"]


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[SharedRing]:
    """A named ring in the test's own directory, gone at the end."""
    made = SharedRing(tmp_path, segment_name("decode-0", 1), RING_BYTES)
    yield made
    made.close()
    assert not made.path.exists()


@pytest.fixture
def start_writer(ring: SharedRing) -> Iterator[Start]:
    """Start writer processes that hold the ring open; none of them outlives the test."""
    started: list[subprocess.Popen[str]] = []

    def start() -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "tests.conformance.writer_process"]
        arguments = [str(ring.path.parent), ring.path.name, SESSION, str(RING_BYTES)]
        process = subprocess.Popen(command + arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_killed_writer_is_proven_quiet(ring: SharedRing, start_writer: Start) -> None:
    """While the process lives its session is not quiet; from the moment it is reaped it is, and its lock file can go."""
    plane = ShmPlane(ring)
    process = start_writer()
    assert ring.buffer[0] == 0xAB
    assert plane.quietness(SESSION) is Quietness.NOT_PROVEN
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert plane.quietness(SESSION) is Quietness.DIED
    plane.forget(SESSION)
    assert [path.name for path in ring.path.parent.iterdir()] == [ring.path.name]


def test_a_stopped_writer_is_not_quiet(ring: SharedRing, start_writer: Start) -> None:
    """A process under SIGSTOP may go on at any time: it is not quiet, however long it stays silent, until it has closed."""
    plane = ShmPlane(ring)
    process = start_writer()
    process.send_signal(signal.SIGSTOP)
    assert plane.quietness(SESSION) is Quietness.NOT_PROVEN
    process.send_signal(signal.SIGCONT)
    assert plane.quietness(SESSION) is Quietness.NOT_PROVEN
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "closed\n"
    assert plane.quietness(SESSION) is Quietness.CLOSED


def test_a_lock_file_that_nobody_ever_held_proves_no_death(ring: SharedRing) -> None:
    """A writer that stopped between creating the file and locking it maps nothing: quiet, and not dead."""
    ring.path.with_name(f"{ring.path.name}.{SESSION}.lock").touch()
    plane = ShmPlane(ring)
    assert plane.quietness(SESSION) is Quietness.CLOSED
    plane.forget(SESSION)


def test_a_second_process_cannot_take_the_session(ring: SharedRing, start_writer: Start) -> None:
    """Two processes never write for one session: the second one's plane does not open."""
    start_writer()
    with pytest.raises(PlaneOpenError, match="another process"):
        ShmWriter(ring.path.parent, {"segment": ring.path.name}, SESSION, RING_BYTES)


def test_a_segment_of_another_size_does_not_open(ring: SharedRing) -> None:
    """A ring that is not as large as the handshake said is not mapped, and no lock stays behind."""
    with pytest.raises(PlaneOpenError, match="expected 4096 bytes, found 65536"):
        ShmWriter(ring.path.parent, {"segment": ring.path.name}, SESSION, 4096)
    assert [path.name for path in ring.path.parent.iterdir()] == [ring.path.name]


def test_a_removed_segment_does_not_open(tmp_path: Path) -> None:
    """A region that was replaced or whose owner is gone says so."""
    gone = SharedRing(tmp_path, segment_name("decode-0", 2), RING_BYTES)
    gone.close()
    with pytest.raises(PlaneOpenError, match="No such file"):
        ShmWriter(tmp_path, {"segment": gone.path.name}, SESSION, RING_BYTES)
    assert list(tmp_path.iterdir()) == []


def test_a_session_that_is_no_file_name_does_not_open(ring: SharedRing) -> None:
    """A session id from the wire never becomes a path outside the directory."""
    with pytest.raises(PlaneOpenError, match="file name"):
        ShmWriter(ring.path.parent, {"segment": ring.path.name}, "../../x", RING_BYTES)
