"""A run leaves no files behind, not even when it was killed."""

import signal
import subprocess
import sys
from pathlib import Path

from lab.workspace import PREFIX, Workspace, remove_leftovers

HOLD = """
import pathlib, sys
from lab.workspace import Workspace
workspace = Workspace(pathlib.Path(sys.argv[1]))
print(workspace.path, flush=True)
sys.stdin.read()
"""


def test_everything_is_gone_on_exit(tmp_path: Path) -> None:
    """The directory is private while it lives, and removed with its contents."""
    with Workspace(tmp_path) as workspace:
        (workspace.pools / "pool").write_bytes(b"kv")
        assert workspace.path.stat().st_mode & 0o777 == 0o700
        assert workspace.path.name.startswith(PREFIX)
    assert list(tmp_path.iterdir()) == []


def test_a_living_run_is_left_alone_and_a_killed_one_is_removed(tmp_path: Path) -> None:
    """The kernel lock tells them apart: another process's directory stays while it lives and goes after SIGKILL."""
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        path = Path(process.stdout.readline().strip())
        assert path.is_dir()
        assert remove_leftovers(tmp_path) == []
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert remove_leftovers(tmp_path) == [path]
    assert not path.exists()


def test_a_directory_that_is_only_being_made_is_left_alone(tmp_path: Path) -> None:
    """Without its lock file nobody can say that a run is dead."""
    (tmp_path / f"{PREFIX}young").mkdir()
    assert remove_leftovers(tmp_path) == []
