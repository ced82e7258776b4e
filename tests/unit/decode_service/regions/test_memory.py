"""Ring memory: allocated in full, named so that its next life finds it, and never able to break a shutdown."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from decode_service.regions.memory import AnonymousRing, SharedRing, copy_into, segment_name, sweep_segments
from runtime.errors import StartError

SIZE = 1 << 16


def test_a_shared_ring_is_allocated_private_and_removed(tmp_path: Path) -> None:
    """The file has its full size in blocks, is readable by nobody else, and is gone after ``close``."""
    ring = SharedRing(tmp_path, segment_name("d", 1), SIZE)
    status = ring.path.stat()
    assert (status.st_size, status.st_mode & 0o777) == (SIZE, 0o600)
    assert status.st_blocks * 512 >= SIZE
    ring.buffer[SIZE - 1] = 1
    ring.close()
    assert list(tmp_path.iterdir()) == []


def test_closing_with_a_view_in_use_does_not_raise(tmp_path: Path) -> None:
    """A copy that still looks at the ring delays its unmapping and never breaks the shutdown."""
    for ring in (SharedRing(tmp_path, segment_name("d", 1), SIZE), AnonymousRing(SIZE)):
        view = ring.buffer[10:20]
        ring.close()
        view[0] = 7
        view.release()
    assert list(tmp_path.iterdir()) == []


def test_a_ring_larger_than_the_file_system_is_refused() -> None:
    """Asking the real /dev/shm for more than it has fails before anything is touched."""
    directory = Path("/dev/shm")
    status = os.statvfs(directory)
    name = segment_name(f"too-large-{os.getpid()}", 1)
    with pytest.raises(StartError, match=r"is full .* lower ring_bytes"):
        SharedRing(directory, name, status.f_blocks * status.f_frsize + (1 << 30))
    assert not (directory / name).exists()


def test_a_missing_shm_dir_is_a_clear_error(tmp_path: Path) -> None:
    """A directory that does not exist is named together with the setting that chooses it."""
    with pytest.raises(StartError, match="shm_dir"):
        SharedRing(tmp_path / "nowhere", segment_name("d", 1), SIZE)


def test_leftovers_of_a_killed_life_are_swept(tmp_path: Path) -> None:
    """What a killed process of this id left is removed with its session locks; others' and living owners' are not touched."""
    script = (
        "import sys, os, pathlib; from decode_service.regions.memory import SharedRing, segment_name;"
        "SharedRing(pathlib.Path(sys.argv[1]), segment_name('d', 9), 4096); os._exit(1)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    stale = segment_name("d", 9)
    (tmp_path / f"{stale}.session.lock").touch()
    living = SharedRing(tmp_path, segment_name("d", 10), SIZE)
    (tmp_path / f"{living.path.name}.session.lock").touch()
    other = tmp_path / segment_name("d-2", 9)
    other.touch()
    assert sweep_segments(tmp_path, "d") == (stale,)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [living.path.name, f"{living.path.name}.session.lock", other.name]
    )
    living.close()


def test_copy_into_touches_only_its_range() -> None:
    """A piece is copied to its offset and nowhere else."""
    ring = AnonymousRing(64)
    copy_into(ring.buffer, 10, memoryview(b"abc"))
    assert bytes(ring.buffer[:16]) == b"\0" * 10 + b"abc" + b"\0" * 3
    ring.close()
