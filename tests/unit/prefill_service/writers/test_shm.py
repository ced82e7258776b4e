"""The prefill half of the shm plane beside what ``tests/conformance`` demands of every plane."""

from pathlib import Path

from decode_service.regions.base import Quietness
from decode_service.regions.memory import SharedRing, segment_name
from decode_service.regions.shm import ShmPlane
from prefill_service.writers.shm import ShmWriter
from tests.conformance.planes import RING_BYTES, SESSION, write_of


def test_a_writer_with_a_view_in_use_keeps_its_lock(tmp_path: Path) -> None:
    """While a copy still looks at the ring the session is not quiet, although it was closed: the lock does not lie."""
    ring = SharedRing(tmp_path, segment_name("d", 1), RING_BYTES)
    plane = ShmPlane(ring)
    writer = ShmWriter(tmp_path, plane.descriptor(), SESSION, RING_BYTES)
    block = writer.acquire(write_of(1, 0, 16))
    writer.close()
    assert plane.quietness(SESSION) is Quietness.NOT_PROVEN
    block.release()
    writer.close()
    assert plane.quietness(SESSION) is Quietness.CLOSED
    ring.close()


def test_it_carries_no_messages(tmp_path: Path) -> None:
    """Completions of this plane travel on the control socket."""
    ring = SharedRing(tmp_path, segment_name("d", 1), RING_BYTES)
    writer = ShmWriter(tmp_path, {"segment": ring.path.name}, SESSION, RING_BYTES)
    assert not writer.send([b"X"])
    assert (writer.socket, writer.unfinished, writer.progress()) == (None, False, ())
    writer.close()
    ring.close()
