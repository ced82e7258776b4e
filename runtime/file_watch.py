"""Notices that files have changed, however they were replaced: written in place, renamed over, or swapped behind a link."""

import os
from collections.abc import Iterable
from pathlib import Path

Signature = tuple[str, int, int, int]
"""Path, inode, time of the last change in ns, size."""


class FileWatch:
    """Notices that a file, or one in a directory, is no longer what it was."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._paths = tuple(paths)
        self._seen = self._look()

    def changed(self) -> bool:
        """Whether anything is different since the last call."""
        before, self._seen = self._seen, self._look()
        return before != self._seen

    def _look(self) -> tuple[Signature, ...]:
        return tuple(entry for path in self._paths for file in _files_of(path) for entry in _signature(file))


def _files_of(path: Path) -> list[Path]:
    try:
        return [path, *sorted(path.glob("*.toml"))] if path.is_dir() else [path]
    except OSError:
        return [path]


def _signature(file: Path) -> list[Signature]:
    try:
        found = os.stat(file)  # noqa: PTH116 - follows the links by which orchestrators swap files
    except OSError:
        return []
    return [(str(file), found.st_ino, found.st_mtime_ns, found.st_size)]
