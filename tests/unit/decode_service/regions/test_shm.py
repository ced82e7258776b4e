"""The decode half of the shm plane beside what ``tests/conformance`` demands of every plane."""

from pathlib import Path

from decode_service.regions.base import Quietness
from decode_service.regions.memory import SharedRing, segment_name
from decode_service.regions.shm import ShmPlane


def test_an_unreadable_lock_file_proves_nothing(tmp_path: Path) -> None:
    """Where the kernel does not answer, nothing is taken for proven."""
    ring = SharedRing(tmp_path, segment_name("d", 1), 4096)
    plane = ShmPlane(ring)
    (tmp_path / f"{ring.path.name}.s.lock").symlink_to(tmp_path / "elsewhere")
    assert plane.quietness("s") is Quietness.NOT_PROVEN
    plane.forget("s")
    plane.close()
    ring.close()


def test_the_question_outlives_the_ring(tmp_path: Path) -> None:
    """A session of a replaced region can still be asked about when the region's memory is gone."""
    ring = SharedRing(tmp_path, segment_name("d", 1), 4096)
    plane = ShmPlane(ring)
    ring.close()
    assert plane.quietness("s") is Quietness.CLOSED
