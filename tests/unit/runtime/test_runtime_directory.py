"""The directory of the engine's socket belongs to this user alone."""

import os
import stat
from pathlib import Path

import pytest

from runtime.errors import StartError
from runtime.runtime_directory import default_runtime_dir, engine_socket, prepare_runtime_dir


def test_default_is_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The session's runtime directory is used where there is one, and a directory with the user's number elsewhere."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    assert default_runtime_dir() == Path("/run/user/7/pd-staging")
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert default_runtime_dir().name.startswith("pd-staging-")


def test_socket_is_named_after_the_service() -> None:
    """The engine finds a daemon by its id."""
    assert engine_socket(Path("/run/x"), "decode") == Path("/run/x/decode.engine.sock")


def test_directory_is_made_private(tmp_path: Path) -> None:
    """A missing directory is made for this user only, and one that is there is used again."""
    path = tmp_path / "a" / "b"
    prepare_runtime_dir(path)
    prepare_runtime_dir(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_directory_of_others_is_refused(tmp_path: Path) -> None:
    """A directory that others may write into is refused with its mode and what to do."""
    path = tmp_path / "open"
    path.mkdir()
    path.chmod(0o777)
    with pytest.raises(StartError, match=r"mode 0777.*--runtime-dir"):
        prepare_runtime_dir(path)


def test_link_and_file_are_refused(tmp_path: Path) -> None:
    """Neither a file nor a link to somebody's directory is taken for the directory."""
    file, link = tmp_path / "file", tmp_path / "link"
    file.touch()
    link.symlink_to(tmp_path)
    for path in (file, link):
        with pytest.raises(StartError, match=r"engine's socket.*--runtime-dir"):
            prepare_runtime_dir(path)


def test_default_needs_no_place_to_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container whose root can only be read may still name another directory: the default is a name, and touches nothing."""
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("TMPDIR", "/nowhere/at/all")
    assert default_runtime_dir() == Path(f"/nowhere/at/all/pd-staging-{os.getuid()}")
