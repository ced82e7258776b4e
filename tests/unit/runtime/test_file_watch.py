"""Changed files are noticed however they were changed."""

import os
from pathlib import Path

from runtime.file_watch import FileWatch


def test_every_way_to_change_a_file_is_seen_once(tmp_path: Path) -> None:
    """Written in place, renamed over, swapped behind a link, removed and made again: each is one change."""
    file = tmp_path / "keys"
    watch = FileWatch([file])
    assert not watch.changed()
    file.write_text("one", encoding="utf-8")
    assert (watch.changed(), watch.changed()) == (True, False)
    file.write_text("longer", encoding="utf-8")
    assert (watch.changed(), watch.changed()) == (True, False)
    other = tmp_path / "other"
    other.write_text("three!", encoding="utf-8")
    other.replace(file)
    assert (watch.changed(), watch.changed()) == (True, False)
    target = tmp_path / "target"
    target.write_text("behind", encoding="utf-8")
    file.unlink()
    file.symlink_to(target)
    assert (watch.changed(), watch.changed()) == (True, False)
    os.utime(target, ns=(1, 1))
    assert (watch.changed(), watch.changed()) == (True, False)
    file.unlink()
    assert (watch.changed(), watch.changed()) == (True, False)


def test_a_directory_changes_with_its_lists(tmp_path: Path) -> None:
    """A list that is added to a watched directory, and one that is changed in it, are noticed."""
    watch = FileWatch([tmp_path])
    (tmp_path / "a.toml").write_text("1", encoding="utf-8")
    assert (watch.changed(), watch.changed()) == (True, False)
    (tmp_path / "a.toml").write_text("22", encoding="utf-8")
    assert (watch.changed(), watch.changed()) == (True, False)
