"""File locks: held by one at a time, and gone with their holder."""

import os
from pathlib import Path

from runtime.locks import FileLock, is_path_of


def test_a_lock_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    """While it is held nobody else gets it; after ``close`` the file is gone and anybody can."""
    path = tmp_path / "a.lock"
    first = FileLock.take(path)
    assert first is not None
    assert FileLock.take(path) is None
    assert path.stat().st_mode & 0o777 == 0o600
    first.close()
    first.close()
    assert not path.exists()
    second = FileLock.take(path)
    assert second is not None
    second.close()


def test_a_stale_lock_file_is_taken_over(tmp_path: Path) -> None:
    """A file that a killed holder left is no lock."""
    path = tmp_path / "a.lock"
    path.touch()
    lock = FileLock.take(path)
    assert lock is not None
    lock.close()


def test_a_marked_file_says_who_held_it(tmp_path: Path) -> None:
    """A mark shows that the lock was held, and by which process."""
    lock = FileLock.take(tmp_path / "a.lock")
    assert lock is not None
    assert lock.path.stat().st_size == 0
    lock.mark()
    assert int(lock.path.read_text()) == os.getpid()
    lock.close()


def test_close_leaves_a_later_file_of_the_same_name(tmp_path: Path) -> None:
    """A holder whose file was replaced removes nothing that is not its own."""
    path = tmp_path / "a.lock"
    lock = FileLock.take(path)
    assert lock is not None
    path.unlink()
    path.touch()
    lock.close()
    assert path.exists()


def test_is_path_of_knows_replaced_files(tmp_path: Path) -> None:
    """A descriptor belongs to its path until the path names another file or none."""
    path = tmp_path / "a"
    with path.open("wb") as opened:
        assert is_path_of(opened.fileno(), path)
        path.unlink()
        assert not is_path_of(opened.fileno(), path)
        path.touch()
        assert not is_path_of(opened.fileno(), path)
