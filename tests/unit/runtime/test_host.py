"""Who shares memory with whom."""

from pathlib import Path

from protocol.identifiers import is_id
from runtime.host import shared_memory_host_id


def test_the_same_memory_has_one_name_and_another_file_system_another(tmp_path: Path) -> None:
    """Two directories of one file system agree; another file system, or none, does not; every name is a valid id."""
    shared = Path("/dev/shm")
    first, second = tmp_path / "a", tmp_path / "b"
    first.mkdir()
    second.mkdir()
    assert shared_memory_host_id(first) == shared_memory_host_id(second)
    assert shared_memory_host_id(shared) == shared_memory_host_id(shared)
    assert shared_memory_host_id(first / "missing") != shared_memory_host_id(first)
    assert is_id(shared_memory_host_id(shared))
    if shared.stat().st_dev != first.stat().st_dev:
        assert shared_memory_host_id(shared) != shared_memory_host_id(first)
