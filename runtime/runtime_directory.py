"""The private directory in which a daemon's unix socket lies. Whoever can reach the socket can command the daemon."""

import os
import stat
from pathlib import Path

from runtime.errors import StartError

MAX_UNIX_PATH_BYTES = 107
"""Linux: ``sun_path`` holds 108 bytes with the closing zero."""


def default_runtime_dir() -> Path:
    """``$XDG_RUNTIME_DIR/pd-staging``, or a directory of this user's own among the temporary files."""
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    return Path(base, "pd-staging") if base else Path(os.environ.get("TMPDIR", "/tmp"), f"pd-staging-{os.getuid()}")  # noqa: S108 - made private, or refused


def engine_socket(runtime_dir: Path, service_id: str) -> Path:
    """Where the engine finds the daemon of that id on this host."""
    return runtime_dir / f"{service_id}.engine.sock"


def prepare_runtime_dir(runtime_dir: Path) -> None:
    """Make the directory (mode 0700) if it is missing; raise ``StartError`` if another user could put a socket into it."""
    wanted = f"use {runtime_dir} for the engine's socket"
    try:
        runtime_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = runtime_dir.lstat()
    except OSError as error:
        raise StartError(wanted, error.strerror or str(error), "choose another directory with --runtime-dir") from error
    if not stat.S_ISDIR(found.st_mode):
        raise StartError(wanted, "it is not a directory", "choose another one with --runtime-dir")
    if found.st_uid != os.getuid() or found.st_mode & 0o022:
        cause = f"it belongs to user {found.st_uid} with mode {stat.S_IMODE(found.st_mode):04o}, so others may write into it"
        raise StartError(wanted, cause, "choose one of your own with mode 0700 (--runtime-dir)")
